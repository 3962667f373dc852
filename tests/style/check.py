#!/usr/bin/python3
"""The rules of the code base that a compiler does not check: include edges, owner files of
foreign headers, sizes, banned calls, export prefixes, what the planner may touch, headers that
compile alone. Standard library only; prints one line a finding and exits 1 when there is one.

Rules are the tables at the top of this file; a deliberate exception is a line there, with its
reason."""
import argparse
import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 100

MODULES = ("core", "planner", "runtime", "profiler", "db", "proto", "server", "client")
# A module may include itself and these.
EDGES = {
    "core": set(),
    "planner": {"core"},
    "runtime": {"planner", "core"},
    "profiler": {"runtime", "planner", "core"},
    "db": {"core"},
    "proto": {"core"},
    "server": {"core", "planner", "runtime", "profiler", "db", "proto"},
    "client": {"proto", "core"},
}
# (file, header) beside the edges, each with its reason.
EDGE_EXCEPTIONS = {
    ("runtime/cuda/trace.c", "profiler/cupti_trace.h"),  # the CUDA module is built from both
    ("runtime/cuda/device.c", "profiler/cupti_counters.h"),
}
FREE_FOLDERS = ("tests", "bench")  # may include anything
# Generated headers belong to proto.
PROTO_GENERATED = re.compile(r"\.pb-c\.h$|^memferry/v\d")

# Foreign header (pattern) -> the only files that may include it (patterns).
HEADER_OWNERS = [
    ("sqlite3.h", ["db/store*.c"]),
    ("cupti*.h", ["profiler/cupti_*"]),
    ("grpc/*", ["server/rpc*.[ch]", "server/listener*.[ch]", "server/reflection*.c",
                "server/health*.c", "client/channel*.[ch]"]),
    ("cblas.h", ["runtime/host/*"]),
    ("hwloc*", ["runtime/*"]),
    ("openssl/*", ["core/hash.c", "server/listener*.c", "server/tls*.c"]),
    ("cuda*.h", ["runtime/cuda/*", "profiler/cupti_*"]),
    ("cublas*.h", ["runtime/cuda/*"]),
    ("cudnn*.h", ["runtime/cuda/cudnn*"]),
    ("nccl.h", ["runtime/cuda/*"]),
    ("ini.h", ["server/*", "client/*"]),
    ("protobuf-c/*", ["proto/*", "server/*", "client/*"]),
]

BANNED_CALLS = {
    "strcpy": "snprintf", "strcat": "snprintf", "sprintf": "snprintf", "vsprintf": "vsnprintf",
    "gets": "fgets", "atoi": "strtoll with its end checked", "atol": "strtoll", "atof": "strtod",
    "system": "posix_spawn", "popen": "posix_spawn", "alloca": "an arena", "rand": "a seeded one",
}
MARKERS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")

# (symbol pattern, file pattern): exports outside the file's own prefix, each with its reason.
EXPORT_EXCEPTIONS = [
    ("mf_assert_failed", "core/status.c"),  # what MF_ASSERT expands to; status.h is everywhere
    ("memferry_*", "client/*.c"),  # the public C interface has the project's name
    ("main", "*"),
]

# The planner is pure: none of these from libc, and no writable globals.
PLANNER_FORBIDDEN = re.compile(
    r"^(time|clock|clock_gettime|gettimeofday|nanosleep|fopen.*|open.*|read|write|v?f?printf"
    r"|__v?f?printf_chk|puts|fwrite|getenv|secure_getenv|rand|random|pthread_.*|stderr|stdout)$")

CODE = (".c", ".h", ".cu", ".cuh")
TEXT = CODE + (".py", ".sh", ".cmake", ".proto")
GENERATED = ("*.pb-c.[ch]", "*_pb2.py", "*_pb2_grpc.py", "*_generated.[ch]")

findings = []


def report(path, line, text):
    findings.append(f"{path}:{line}: {text}" if line else f"{path}: {text}")


def matches(path, patterns):
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def list_files(source):
    """Tracked files and new ones that git does not ignore; all files where there is no git."""
    command = ["git", "-C", source, "ls-files", "-co", "--exclude-standard", "-z"]
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode == 0:
        names = [name for name in result.stdout.decode().split("\0") if name]
    else:
        names = []
        for folder, folders, files in os.walk(source):
            folders[:] = [f for f in folders if not f.startswith((".", "build"))]
            names += [os.path.relpath(os.path.join(folder, f), source) for f in files]
    return sorted(name for name in set(names) if os.path.isfile(os.path.join(source, name)))


def is_text(path, first_line):
    name = os.path.basename(path)
    return (path.endswith(TEXT) or name == "CMakeLists.txt"
            or (first_line.startswith("#!") and not path.endswith(".md")))


def blank_out(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def strip_code(text):
    """The text with comments, strings and characters blanked, lines and columns kept."""
    token = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
    return token.sub(blank_out, text)


def module_of(path):
    head = path.split("/", 1)[0]
    return head if "/" in path and head in MODULES + FREE_FOLDERS else None


def check_quoted(path, number, header):
    module = module_of(path)
    if module is None or module in FREE_FOLDERS or (path, header) in EDGE_EXCEPTIONS:
        return
    target = "proto" if PROTO_GENERATED.search(header) else header.split("/", 1)[0]
    if module == "client" and header == "memferry.h":
        return
    if "/" not in header:
        report(path, number, f'"{header}": write the module too, "{module}/{header}"')
    elif target in FREE_FOLDERS:
        report(path, number, f'"{header}": only tests and bench include from {target}/')
    elif target in MODULES and target != module and target not in EDGES[module]:
        allowed = ", ".join(sorted(EDGES[module])) or "nothing else"
        report(path, number, f'"{header}": {module} may include {allowed}, not {target}')


def check_includes(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r"\s*#\s*include\s+([<\"])([^>\"]+)[>\"]", line)
        if not match:
            continue
        kind, header = match.groups()
        if kind == '"':
            check_quoted(path, number, header)
        if module_of(path) in FREE_FOLDERS:
            continue
        for pattern, owners in HEADER_OWNERS:
            if fnmatch.fnmatch(header, pattern) and not matches(path, owners):
                report(path, number, f"<{header}> may be included only by {', '.join(owners)}")


def function_start(lines, brace):
    """The first line of the signature whose opening brace is alone on line `brace`."""
    start = brace
    while start > 0:
        above = lines[start - 1].strip()
        if not above or above.endswith((";", "}")) or above.startswith("#"):
            break
        start -= 1
    return start


def check_functions(path, stripped):
    """Finds functions by the layout clang-format enforces: braces alone in the first column."""
    lines = stripped.split("\n")
    start = brace = None
    for index, line in enumerate(lines):
        if line.rstrip() == "{" and brace is None:
            brace, start = index, function_start(lines, index)
        elif line.startswith("}") and brace is not None:
            length = index - start + 1
            if length > FUNCTION_LINES_MAX:
                name = re.search(r"(\w+)\s*\(", " ".join(lines[start:brace]))
                name = name.group(1) if name else "function"
                report(path, start + 1,
                       f"{name} has {length} lines, at most {FUNCTION_LINES_MAX}")
            start = brace = None
        elif brace is not None and re.match(r"\s*#\s*if", line):
            report(path, index + 1, "#if inside a function: split at a file boundary")


def check_calls(path, stripped):
    for number, line in enumerate(stripped.split("\n"), 1):
        for match in re.finditer(r"(?<![\w.>])(\w+)\s*\(", line):
            name = match.group(1)
            if name in BANNED_CALLS:
                report(path, number, f"{name}() is banned: use {BANNED_CALLS[name]}")


def check_guard(path, text):
    guard = "MF_" + re.sub(r"\W", "_", path).upper()
    public = path == "client/include/memferry.h"
    if public:
        guard = "MEMFERRY_H"
    if not re.search(rf"^#ifndef {guard}\n#define {guard}$", text, re.M):
        report(path, 1, f"the include guard must be {guard}")


def check_header_comment(path, text):
    body = re.sub(r"\A#![^\n]*\n", "", text).lstrip("\n")
    if not body.startswith(("/*", "//", "#", '"""', "'''")) or body.startswith("#include"):
        report(path, 1, "begin with a comment that says what the file is")


def check_text(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LINE_COLUMNS_MAX:
            report(path, number, f"{len(line)} columns, at most {LINE_COLUMNS_MAX}")
        if line != line.rstrip():
            report(path, number, "blanks at the end of the line")
        marker = MARKERS.search(line)
        if marker:
            report(path, number, f"{marker.group(1)} marker: do it or write it in an issue")
    if text and not text.endswith("\n"):
        report(path, 0, "no newline at the end")


def check_file(source, path):
    if matches(os.path.basename(path), GENERATED):
        return
    with open(os.path.join(source, path), "rb") as file:
        raw = file.read()
    first_line = raw[:200].split(b"\n", 1)[0].decode("utf-8", "replace")
    if not is_text(path, first_line):
        return
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        report(path, 0, "not UTF-8")
        return
    check_text(path, text)
    check_header_comment(path, text)
    if path.endswith(CODE):
        stripped = strip_code(text)
        check_includes(path, text)
        check_functions(path, stripped)
        check_calls(path, stripped)
        if path.endswith((".h", ".cuh")):
            check_guard(path, text)


def read_symbols(objects):
    """nm over many objects at once: {object: [(name, type letter, section)]}."""
    if not objects:
        return {}
    result = subprocess.run(["nm", "-A", "-f", "sysv"] + objects, capture_output=True,
                            text=True, check=False)
    symbols = {}
    for line in result.stdout.split("\n"):
        head, bar, rest = line.partition("|")
        fields = [field.strip() for field in rest.split("|")]
        if not bar or len(fields) < 6:
            continue
        owner, _, name = head.strip().partition(":")
        symbols.setdefault(owner, []).append((name.strip(), fields[1], fields[5]))
    return symbols


def allowed_prefixes(path, source):
    parts = path.split("/")
    stem = re.sub(r"\.\w+$", "", parts[-1])
    prefixes = [f"mf_{stem}"]
    # session_call.c may implement what session.h declares: a long file is cut, its header is not.
    words = stem.split("_")
    for count in range(len(words) - 1, 0, -1):
        header = "_".join(words[:count])
        if os.path.exists(os.path.join(source, *parts[:-1], header + ".h")):
            prefixes += [f"mf_{header}"]
    if len(parts) > 2:
        prefixes += [f"mf_{parts[-2]}_{stem}"]
    return prefixes


def check_exports(path, symbols, source):
    prefixes = allowed_prefixes(path, source)
    for name, letter, _ in symbols:
        if letter not in "TDBRCVWG" or name.startswith("__"):
            continue
        if any(name == prefix or name.startswith(prefix + "_") for prefix in prefixes):
            continue
        if any(fnmatch.fnmatch(name, symbol) and fnmatch.fnmatch(path, owner)
               for symbol, owner in EXPORT_EXCEPTIONS):
            continue
        report(path, 0, f"exports {name}; only {' or '.join(prefixes)}_* (else make it static)")


def check_purity(path, symbols):
    for name, letter, section in symbols:
        if letter == "U" and PLANNER_FORBIDDEN.match(name.split("@")[0]):
            report(path, 0, f"uses {name}: the planner has no clock, I/O or threads")
        if section in (".data", ".bss") or section.startswith((".data.local", ".tbss", ".tdata")):
            if not name.startswith((".", "__", "completed.")):
                report(path, 0, f"has the writable global {name}: the planner has none")


def check_objects(source, entries):
    """`entries`: what compile_commands.json says about our own, non-generated files."""
    objects = {}
    for entry in entries:
        path = os.path.relpath(entry["file"], source)
        words = shlex.split(entry["command"])
        output = os.path.join(entry["directory"], words[words.index("-o") + 1])
        if module_of(path) in MODULES and path.endswith(".c") and os.path.exists(output):
            objects[output] = path
    sanitized = any("-fsanitize=" in entry["command"] for entry in entries)
    for output, symbols in read_symbols(list(objects)).items():
        path = objects[output]
        check_exports(path, symbols, source)
        if path.startswith("planner/") and not sanitized:
            check_purity(path, symbols)
    return len(objects)


def compile_alone(source, compiler, flags, path):
    command = [compiler, "-std=c17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *flags,
               "-include", os.path.join(source, path), "-x", "c", os.devnull]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.split("\n") if "error" in line]
        return f"does not compile alone: {(lines or ['?'])[0]}"
    return None


def check_headers(source, compiler, entries, files):
    flags = set()
    for entry in entries:
        words = shlex.split(entry["command"])
        for index, word in enumerate(words):
            if word == "-isystem":
                flags.add("-isystem" + words[index + 1])
            elif word.startswith(("-I", "-D_", "-DMF_", "-DHARNESS")):
                flags.add(word)
    headers = [path for path in files if path.endswith(".h") and not path.startswith(
        "runtime/cuda/") and not matches(os.path.basename(path), GENERATED)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = pool.map(lambda p: compile_alone(source, compiler, sorted(flags), p), headers)
        for path, text in zip(headers, texts):
            if text:
                report(path, 0, text)


def load_entries(source, build):
    path = os.path.join(build, "compile_commands.json") if build else ""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        entries = json.load(file)
    inside = source + os.sep
    build_inside = os.path.abspath(build) + os.sep
    return [entry for entry in entries if entry["file"].startswith(inside)
            and not entry["file"].startswith(build_inside)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--source", default=os.path.dirname(os.path.dirname(here)))
    parser.add_argument("--build", help="build tree; without it no symbols and no headers")
    parser.add_argument("--cc", default="cc")
    options = parser.parse_args()
    source = os.path.realpath(options.source)

    files = list_files(source)
    for path in files:
        check_file(source, path)
    entries = load_entries(source, options.build)
    objects = 0
    if entries:
        objects = check_objects(source, entries)
        check_headers(source, options.cc, entries, files)
    for line in findings:
        print(line)
    print(f"style: {len(files)} files, {objects} objects, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
