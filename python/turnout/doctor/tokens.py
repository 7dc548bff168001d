"""Does the engine tokenize as the router would?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from turnout.errors import InvalidArgument, MissingExtra
from turnout.feeds.fetch import ask

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp

    from turnout.doctor.report import Report
    from turnout.feeds.config import Engine, Timing

TEXTS: Final = (
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return  x ** 2  # spaces\t\n\n",
    "Zürich, naïve, Ελλάδα, 東京, مرحبا, 👩‍🚀",
    '<tool>{"a": [1, 2.50, null]}</tool> 1234567890',
)
"""Words, code, scripts, and what chat templates are made of."""


async def compare_tokenizer(
    report: Report,
    session: aiohttp.ClientSession,
    engine: Engine,
    own: Any,  # noqa: ANN401 - a tokenizers.Tokenizer
    timing: Timing,
) -> None:
    """Ask `/tokenize`, and compare with a file where one is given.

    Args:
        report: Takes the finding.
        session: The HTTP client.
        engine: The engine.
        own: What `load_tokenizer` returned; None = none is compared.
        timing: Limits of an answer.
    """
    for text in TEXTS:
        answer = await ask(session, f"{engine.url}/tokenize", timing, post={"prompt": text})
        tokens = answer.json().get("tokens")
        if not isinstance(tokens, list):
            words = "/tokenize does not answer: text prompts need a tokenizer file beside the router"
            report.add("tokenizer", "untried" if own is None else "missing", words)
            return
        if own is not None and own.encode(text).ids != tokens:
            words = f"the given file makes other tokens than the engine of {text!r}"
            report.add("tokenizer", "missing", words, "take the tokenizer.json of the model that the engine serves")
            return
    report.add("tokenizer", "ok", "/tokenize answers" + ("" if own is None else ", equal to the given file"))


def load_tokenizer(path: Path) -> Any:  # noqa: ANN401 - a tokenizers.Tokenizer
    """Read a tokenizer.

    Args:
        path: A `tokenizer.json`.

    Returns:
        The tokenizer.

    Raises:
        InvalidArgument: The file cannot be read.
        MissingExtra: The package `tokenizers` is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtra("the tokenizer needs tokenizers: pip install 'turnout[serve]'") from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        accepted = "a tokenizer.json"
        message = f"tokenizer: got {path} ({error}), accepted is {accepted}"
        raise InvalidArgument(message, "tokenizer", str(path), accepted) from error
