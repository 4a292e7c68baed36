// Mistakes and the driver's answers. Documented answers are checked; undefined ones are only printed. --print writes
// only "check=value" lines, so that a native and a forwarded run can be compared line by line. Mistakes that poison
// their context, or may crash a driver, run in child processes.
#include "tests/gpu/errors.h"

#include <sys/wait.h>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

namespace gpupool::programs {

bool printing_values = false;

void report(const char* name, CUresult actual, std::initializer_list<CUresult> expected) {
    if (printing_values) {
        printf("%s=%d\n", name, actual);
        fflush(stdout);
    }
    bool as_expected = expected.size() == 0 && actual != CUDA_SUCCESS;
    std::string wanted = expected.size() == 0 ? "any error" : "";
    for (const CUresult one : expected) {
        as_expected = as_expected || actual == one;
        wanted += (wanted.empty() ? "" : " or ") + result_name(one);
    }
    if (printing_values) {
        (as_expected ? held_checks : failed_checks).fetch_add(1);
    } else {
        check(as_expected, "%s: %s, expected %s", name, result_name(actual).c_str(), wanted.c_str());
    }
}

namespace {

struct Child {
    const char* argument;
    void (*body)();
};

const Child kChildren[] = {
    {"--child-before-init", mistakes_before_init},
    {"--child-no-context", mistakes_without_context},
    {"--child-illegal-address", illegal_address},
    {"--child-misaligned-address", misaligned_address},
    {"--child-trap", trap},
    {"--child-assert", failed_assertion},
    {"--child-null-handles", null_handles},
    {"--child-destroyed-context", destroyed_context},
    {"--child-replaced-context", replaced_context},
};

void run_child(const Child& child) {
    // Passed through the environment, because the child takes one argument only.
    setenv("GPUPOOL_ERRORS_PRINT", printing_values ? "1" : "0", 1);
    const int status = run_self(child.argument);
    const bool held = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!printing_values) {
        check(held, "%s in a child process", child.argument + strlen("--child-"));
        return;
    }
    if (!held && !(WIFEXITED(status) && WEXITSTATUS(status) == 1)) {
        printf("%s=died, wait status %d\n", child.argument + strlen("--child-"), status);
    }
    (held ? held_checks : failed_checks).fetch_add(1);
}

int child_main(const char* argument) {
    const char* print = getenv("GPUPOOL_ERRORS_PRINT");
    printing_values = print != nullptr && strcmp(print, "1") == 0;
    limit_seconds(60);
    for (const Child& child : kChildren) {
        if (strcmp(argument, child.argument) == 0) {
            child.body();
            return failed_checks.load() == 0 ? 0 : 1;
        }
    }
    return 2;
}

int run(int argc, char** argv) {
    Program program("errors", argc, argv);
    printing_values = program.flag("print");
    const auto section = [&](const char* name, void (*body)()) {
        if (printing_values) {
            body();  // all sections, without headings
        } else {
            program.section(name, body);
        }
    };
    {
        const Device device;
        section("launches", launch_mistakes);
        section("memory", memory_mistakes);
        section("reservations", reservation_mistakes);
        section("modules", module_mistakes);
        section("devices", device_mistakes);
        section("events", event_mistakes);
        section("whose", whose_mistakes);
        section("registration", registration_mistakes);
    }
    for (const Child& child : kChildren) {
        if (printing_values) {
            run_child(child);
        } else {
            program.section(child.argument + strlen("--child-"), [&] { run_child(child); });
        }
    }
    if (printing_values) {
        return failed_checks.load() == 0 ? 0 : 1;
    }
    return program.finish();
}

}  // namespace

}  // namespace gpupool::programs

int main(int argc, char** argv) {
    if (argc == 2 && strncmp(argv[1], "--child-", strlen("--child-")) == 0) {
        return gpupool::programs::child_main(argv[1]);
    }
    return gpupool::programs::run(argc, argv);
}
