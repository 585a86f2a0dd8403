"""Everything that is planted: what must be refused, and what must not."""

from __future__ import annotations

from tests.verify.planted.call_faults import CALL_FAULTS
from tests.verify.planted.sound import EXPORTED, SOUND
from tests.verify.planted.weight_faults import WEIGHT_FAULTS

FAULTS = (*WEIGHT_FAULTS, *CALL_FAULTS)
SOUND_VARIANTS = (*SOUND, *EXPORTED)
QUICK_SOUND = SOUND  # what needs no export
