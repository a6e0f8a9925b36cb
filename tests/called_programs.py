"""Finds the programs that sources call: in Python, shell scripts, pages and units.

A word of a shell counts where a simple command begins. Words that are built in, are
functions or aliases of the same text, or paths, do not count.
"""

import ast
import re
from collections.abc import Iterator

STARTS = re.compile(r"(subprocess\.\w+|(shutil\.)?which|os\.exec\w+)$")
_BUILT_IN = """
. : [ } alias bg break builtin cd command continue declare disown done echo esac eval
exit export false fg fi for function getopts hash in jobs let local mapfile printf pwd
read readonly return select set shift shopt source test times trap true type ulimit
umask unalias unset wait
"""
BUILT_IN = frozenset(_BUILT_IN.split())
_PREFIXES = "if then else elif while until do ! { exec time nice nohup sudo"
PREFIXES = frozenset(_PREFIXES.split())
"""Words after which another command begins."""

BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
HERE = re.compile(
    r"<<-?\s*['\"]?(\w+)['\"]?(.*?\n).*?^\s*\1$", re.DOTALL | re.MULTILINE
)
EXEC = re.compile(r"^Exec\w+=[-+!@:]*(\S+)(.*)$", re.MULTILINE)
TOKEN = re.compile(
    r"""
    (?P<skip>\\\n|[ \t]+|(?<![^\s;&|()])\#[^\n]*)
  | (?P<end>;;|\n|[;&|)]+|\((?!\())
  | (?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\((?:[^()"]|"[^"]*"|\([^()]*\))*\)
        |\w+\+?=\((?:'[^']*'|"[^"]*"|\$\([^()]*\)|[^()'"])*\)
        |\(\([^\n]*?\)\)|[<>]\([^()]*\)|[<>]+&?|[^\s;&|()'"\\])+)
    """,
    re.VERBOSE | re.DOTALL,
)
SUBSTITUTION = re.compile(r"\$\((?!\()((?:[^()]|\([^()]*\))*)\)")
NO_COMMAND = re.compile(r"\w+\+?=|[<>(]")
"""An assignment, a redirection or arithmetic."""

NAME = re.compile(r"(?:/usr/s?bin/|/s?bin/)?([A-Za-z][\w.+-]*)$")


def programs_in_python(text: str) -> Iterator[str]:
    """First words of the command lists in calls of `subprocess`, `which` and `exec`."""
    if re.search(r"\b(subprocess|which|os\.exec)", text) is None:
        return  # most files; parsing is slow
    lists: dict[str, list[ast.expr]] = {}
    calls: list[ast.expr] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                lists[name] = [value]
            case ast.For(target=ast.Name(name), iter=ast.Tuple(elts=each)):
                lists[name] = each
            case ast.Call(func=func, args=[words, *_]) if STARTS.match(
                ast.unparse(func)
            ):
                calls.append(words)
    for words in calls:
        each = lists.get(words.id, []) if isinstance(words, ast.Name) else [words]
        yield from filter(None, (_name(_first_word(one)) for one in each))


def _first_word(node: ast.AST) -> str:
    """The literal that a list begins with; empty if it begins with anything else."""
    match node:
        case ast.List(elts=[inner, *_]) | ast.Tuple(elts=[inner, *_]):
            return _first_word(inner)
        case ast.Starred(value=inner):
            return _first_word(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="split")):
            return _first_word(inner)
        case ast.Constant(value=str(text)) if text.strip():
            return text.split()[0]
    return ""


def programs_in_page(text: str) -> Iterator[str]:
    """Programs in the shell blocks of a page."""
    yield from programs_in_shell("\n".join(BLOCK.findall(text)))


def programs_in_unit(text: str) -> Iterator[str]:
    """Programs of a unit's commands, also those of a shell that it starts."""
    for program, words in EXEC.findall(text):
        yield from filter(None, [_name(program)])
        if (script := re.search(r" -e?c '(.*)'$", words)) is not None:
            yield from programs_in_shell(script[1])


def programs_in_shell(text: str) -> Iterator[str]:
    """Programs of a script."""
    text = HERE.sub(r"\2", text)
    functions = {*re.findall(r"^\s*([\w-]+)\s*\(\)", text, re.MULTILINE)}
    functions |= {*re.findall(r"^\s*alias ([\w-]+)=", text, re.MULTILINE)}
    for word in _command_words(text):
        name = _name(word)
        if name and name not in BUILT_IN | functions:
            yield name


def _command_words(text: str) -> Iterator[str]:
    """Words at the begin of commands, also of those in `$(...)`."""
    is_begin = True
    tokens = TOKEN.finditer(text)
    for token in tokens:
        word = token[0]
        if token.lastgroup == "end":
            is_begin = True
            if word == ";;":
                _skip_pattern(tokens)
        elif token.lastgroup == "word":
            for inner in SUBSTITUTION.findall(word) * (word[0] != "'"):
                yield from _command_words(inner)
            if is_begin and not _skip_syntax(word, tokens):
                is_begin = False
                yield word


def _skip_syntax(word: str, tokens: Iterator[re.Match[str]]) -> bool:
    """Skip to the next command if a word at its begin is syntax, or return False."""
    if word == "case":
        _skip_pattern(tokens)
    elif word == "[[":
        next((token for token in tokens if token[0] == "]]"), None)
    elif word not in PREFIXES:
        return NO_COMMAND.match(word) is not None
    return True


def _skip_pattern(tokens: Iterator[re.Match[str]]) -> None:
    """Skip to the bracket behind a pattern, or to the end of its `case`."""
    for token in tokens:
        if token[0].endswith(")") or token[0] == "esac":
            return


def _name(word: str) -> str:
    found = NAME.match(word)
    return found[1] if found else ""
