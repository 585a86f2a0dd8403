"""A sample workload for users who bring none yet: made-up service messages, most of them short, a few long.

The texts are combined from sentences written for this purpose. A verdict on them says how far a variant moves on
plain business text, and nothing about anybody's own data: the report says so.
"""

from __future__ import annotations

import random

from vengine.digests import digest_json
from vengine.types import Sample, Workload

_COUNT, _SEED = 480, 20
_OPENINGS = (
    "Hello,",
    "Good morning,",
    "Hi there, quick question:",
    "Dear support team,",
    "",
    "",
    "",
    "Sorry to bother you again.",
    "This is my second message about this.",
)
_THINGS = (
    "the pump",
    "my invoice",
    "the login page",
    "our delivery",
    "the left brake",
    "the new dashboard",
    "your mobile app",
    "the office printer",
    "the heating",
    "last month's report",
    "the spare key",
    "our booking for Friday",
    "the second monitor",
    "the coffee machine on floor 3",
    "the export to CSV",
)
_FACTS = (
    "{thing} stopped working this morning.",
    "{thing} has been fine until the update on Tuesday.",
    "I can't find {thing} anywhere in my account.",
    "Where do I change the address for {thing}?",
    "Please cancel {thing} and send the money back to the same card.",
    "{thing} makes a noise like a small aeroplane when it starts.",
    "Somebody charged me twice for {thing}.",
    "How long does it usually take until {thing} is repaired?",
    "The manual says nothing about {thing}, so I stopped there.",
    "We need {thing} for 14 people, two of them with a wheelchair.",
    "Is {thing} covered by the warranty, or do I have to pay 49.90 euros?",
    "{thing} shows error E-207 and then turns itself off.",
    "My colleague says that {thing} belongs to another department.",
    "I would like to keep {thing}, but at half the price.",
    "{thing} arrived with a dent on the lower right corner.",
    "Nobody answered when I called about {thing} on Monday.",
    "Could you send a photo of {thing} before we decide?",
    "Since the power cut {thing} forgets its settings every night.",
)
_DETAILS = (
    "I tried to restart it three times, with and without the cable.",
    "The serial number ends in 7731.",
    "The first time it happened was during a thunderstorm.",
    "It works again after ten minutes, but never for long.",
    "My neighbour has the same model and no trouble at all.",
    "We open at half past eight and close at six, except on Sundays.",
    "If it can't be fixed by Thursday, a replacement would be fine too.",
    "You can reach me in the evening, or leave a message with Mrs. Lindqvist.",
    "I attached two pictures and the receipt from March.",
    "None of the steps on your help page changed anything.",
    "It would be a pity to throw it away after only four months.",
    "Please don't close the ticket again before someone has looked at it.",
    "The temperature in the room was about twenty-one degrees.",
    "For the record, the technician was friendly and came on time.",
    "Otherwise I am quite happy and would order again.",
    "Last year the same thing cost a third less.",
)
_CHINESE = (
    "请问{thing}什么时候可以修好？",
    "{thing}昨天晚上突然停了，重启也没有用。",
    "我想退掉{thing}，钱能退回原来的卡吗？",
    "{thing}被收了两次费，麻烦查一下。",
    "说明书里没有写{thing}怎么设置。",
)
_CHINESE_THINGS = ("水泵", "这张发票", "登录页面", "新的报表", "办公室的打印机", "周五的预订")


def workload() -> Workload:
    """The sample workload: always the same texts in the same order."""
    draw = random.Random(_SEED)
    texts = tuple(dict.fromkeys(_text(draw) for _ in range(2 * _COUNT)))[:_COUNT]
    return Workload(
        samples=tuple(Sample(text=text) for text in texts),
        origin="built-in sample texts",
        digest=digest_json(texts),
        synthetic=True,
    )


def _text(draw: random.Random) -> str:
    if draw.random() < 0.08:
        return draw.choice(_CHINESE).format(thing=draw.choice(_CHINESE_THINGS))
    # Most messages are one or two sentences; one in ten tells a story.
    facts = 1 + (draw.random() < 0.25)
    details = draw.choices((0, 1, 2, 4, 8, 12), weights=(45, 25, 14, 8, 5, 3))[0]
    sentences = [draw.choice(_FACTS).format(thing=draw.choice(_THINGS)) for _ in range(facts)]
    sentences += draw.sample(_DETAILS, details)
    body = " ".join(s[0].upper() + s[1:] for s in sentences)
    return f"{draw.choice(_OPENINGS)} {body}".strip()
