"""A rule of thumb: what it says, of which operands, and the check of stored rows that judges it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkernels.production.practice import Practice

#: Takes the rows of a rule's experiments, in their order; says whether it holds and what was measured, in words.
#: Rows that it needs and does not find are `NotMeasured`, as `stats.where` raises it.
Judge = Callable[..., tuple[bool, str]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule of thumb.

    Attributes:
        id: stable name; stored with verdicts.
        chapter: file name of the chapter that shows its evidence, without the ending.
        operands: the operands it applies to, in words.
        take: what to do with them.
        statement: the rule as a sentence.
        scope: on what it was measured: shapes, source, pipeline.
        experiments: whose rows judge it.
        judge: the check of those rows, the main table of each.
        applies_to: operands of the advisor it applies to, as in `source == 'l2' and fan_out >= 4`; empty for none.
        practice: which operands of the catalog it applies to, and which of those follow it.
    """

    id: str
    chapter: str
    operands: str
    take: str
    statement: str
    scope: str
    experiments: tuple[str, ...]
    judge: Judge
    applies_to: str = ""
    practice: Practice | None = None


class Rules(list[Rule]):
    """The rules of one chapter, in the order of their definition.

    Args:
        chapter: its file name, without the ending.
        experiments: whose rows judge a rule that names no others.
    """

    def __init__(self, chapter: str, *experiments: str) -> None:
        super().__init__()
        self.given = {"chapter": chapter, "experiments": experiments}

    def rule(self, id: str, **fields: Any) -> Callable[[Judge], Judge]:
        """Make the decorated function the judge of a rule; fields as those of `Rule`."""

        def define(judge: Judge) -> Judge:
            self.append(Rule(id=id, judge=judge, **self.given | fields))
            return judge

        return define
