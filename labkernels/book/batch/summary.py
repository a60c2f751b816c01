"""What came of a batch, for people, machines and a browser."""

from dataclasses import asdict
from typing import Any

from jinja2 import Template

from labkernels.book.batch.folder import BatchFolder
from labkernels.book.batch.job import DONE, FAILED, NOTEBOOK, NOTHING

NOT_RUN = "not run"

_PAGE = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Batch {{ name }}</title><style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .6rem; vertical-align: top }
tr { border-bottom: 1px solid #8884 } td.n { text-align: right } .failed { color: #b00020 }
</style></head><body><h1>Batch {{ name }}</h1><p>{{ told }}</p>
<table><tr><th>chapter<th>parameters<th>status<th>seconds<th>GPU<th>runs<th></tr>
{% for job in jobs %}<tr><td>{% if job.notebook %}<a href="{{ job.notebook }}">{{ job.chapter }}</a>{% else
%}{{ job.chapter }}{% endif %}<td>{{ job.parameters }}<td class="{{ job.status }}">{{ job.status
}}<td class="n">{{ job.seconds }}<td>{{ job.gpu }}<td class="n">{{ job.runs|length
}}<td>{{ job.error }}{% for one in job.left_out %}<div>not measured here: {{ one }}</div>{% endfor %}</tr>
{% endfor %}</table></body></html>
""",
    autoescape=True,
    finalize=lambda value: "" if value is None else value,
)


def summary(batch: BatchFolder, new_runs: list[str]) -> dict[str, Any]:
    """The state of every job, how many there are of each status, and the runs that were merged."""
    outcomes = batch.outcomes()
    jobs = []
    for job in batch.jobs:
        one = outcomes.get(job.name)
        notebook = f"{job.name}/{NOTEBOOK}"
        of_job = asdict(one) if one else {"status": NOT_RUN, "error": None, "left_out": (), "runs": ()}
        has = (batch.root / notebook).exists()
        jobs.append(
            {"chapter": job.chapter, "parameters": job.parameters, "notebook": notebook if has else None}
            | of_job
        )
    counts = {kind: sum(one["status"] == kind for one in jobs) for kind in (DONE, NOTHING, FAILED, NOT_RUN)}
    archive = batch.archive()
    return {
        "folder": str(batch.root),
        "archive": str(archive) if archive else None,
        "counts": counts,
        "merged": new_runs,
        "jobs": jobs,
    }


def told(value: dict[str, Any]) -> str:
    """One sentence."""
    counts = ", ".join(f"{count} {kind}" for kind, count in value["counts"].items() if count)
    runs = f"; {len(value['merged'])} new runs merged" if value["merged"] else ""
    return f"{counts}{runs}"


def text(value: dict[str, Any]) -> str:
    """A line per job, with what is wrong below it."""
    lines = []
    for job in value["jobs"]:
        given = " ".join(f"{name}={one}" for name, one in job["parameters"].items())
        took = f"{job['seconds']:.0f} s" if job.get("seconds") else ""
        lines.append(f"{job['status']:24}{took:>6}  {job['chapter']} {given}".rstrip())
        lines += [f"    {one}" for one in (job["error"], *job["left_out"]) if one]
    lines.append(f"{told(value)}: {value['folder']}")
    if value["archive"]:
        lines.append(f"its rows in one file, for merge: {value['archive']}")
    return "\n".join(lines)


def page(value: dict[str, Any]) -> str:
    """The same as HTML, with links to the notebooks."""
    return _PAGE.render(value, name=value["folder"], told=told(value))
