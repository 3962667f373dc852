#!/usr/bin/python3
"""Proves that check.py finds what it is for: plants one violation of every rule in a small tree
and expects exactly that finding, then expects none in a clean tree."""
import os
import subprocess
import sys
import tempfile

CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check.py")
LONG = "    call();\n" * 70
MARK = "TO" + "DO"

# (file, text after the header comment, fragment of the expected finding)
CASES = [
    ("planner/a.c", '#include "runtime/device.h"\n', "planner may include core, not runtime"),
    ("client/a.c", '#include "db/store.h"\n', "client may include core, proto, not db"),
    ("server/a.c", '#include "client/channel.h"\n', "not client"),
    ("db/a.c", '#include "memferry/v1/plan.pb-c.h"\n', "db may include core, not proto"),
    ("core/a.c", '#include "tests/harness.h"\n', "only tests and bench"),
    ("core/a.c", '#include "log.h"\n', "write the module too"),
    ("db/schema.c", "#include <sqlite3.h>\n", "may be included only by db/store*.c"),
    ("profiler/measure.c", "#include <cupti.h>\n", "profiler/cupti_*"),
    ("server/service.c", "#include <grpc/grpc.h>\n", "server/rpc*"),
    ("runtime/executor.c", "#include <cblas.h>\n", "runtime/host/*"),
    ("core/a.c", "void f(void)\n{\n" + LONG + "}\n", "f has 73 lines, at most 70"),
    ("core/a.c", "void f(void)\n{\n#if A\n#endif\n}\n", "#if inside a function"),
    ("core/a.c", "int x;" + " " * 100 + "/* */\n", "columns, at most 100"),
    ("core/a.c", "void f(void)\n{\n    strcpy(a, b);\n}\n", "strcpy() is banned"),
    ("core/a.c", "/* " + MARK + " */\n", "marker"),
    ("core/a.h", "#ifndef A_H\n#define A_H\n#endif\n", "guard must be MF_CORE_A_H"),
    ("core/a.c", "int x; \n", "blanks at the end"),
    ("core/a.c", "int x;", "no newline at the end"),
]
CLEAN = [
    ("planner/a.c", '#include "core/log.h"\n#include "planner/step.h"\n'),
    ("db/store_plans.c", "#include <sqlite3.h>\n"),
    ("server/rpc_stream.c", '#include <grpc/grpc.h>\n#include "memferry/v1/a.pb-c.h"\n'),
    ("core/a.c", "void f(void)\n{\n" + LONG[:-36] + "}\n"),
    ("core/a.c", 'const char *x = "strcpy(a); // not code";\n'),
    ("core/a.c", "/* memferry-XXXXXX is mkstemp's pattern; see system(3). */\n"),
    ("tests/unit/test_a.c", '#include <sqlite3.h>\n#include "db/store.h"\n'),
]


def check(path, text):
    with tempfile.TemporaryDirectory(prefix="memferry-style-") as folder:
        full = os.path.join(folder, path)
        os.makedirs(os.path.dirname(full))
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)
        result = subprocess.run([sys.executable, CHECK, "--source", folder],
                                capture_output=True, text=True, check=False)
        return result.returncode, result.stdout


def expect(condition, what, output):
    if not condition:
        print(f"FAILED {what}\n{output}")
        sys.exit(1)


def main():
    for path, text, fragment in CASES:
        code, output = check(path, "/* A file. */\n" + text)
        expect(code == 1 and fragment in output and ", 1 findings" in output, (path, text), output)
    code, output = check("core/a.c", "int x;\n")
    expect(code == 1 and "begin with a comment" in output, "header comment", output)
    for path, text in CLEAN:
        code, output = check(path, "/* A file. */\n" + text)
        expect(code == 0, (path, text), output)
    print(f"{len(CASES) + 1} violations found, {len(CLEAN)} clean files passed")


if __name__ == "__main__":
    main()
