// Shared by all test programs: one printed line per check, and an exit status that says whether all checks passed.
//
// Purpose: when forwarding is wrong, a line names the failed check, and the lines are the same natively and forwarded.
// Ownership: process-wide counters. Threads: all functions may be called from any thread. Errors: a failed check is
// printed and counted; finish() turns the count into the exit status.
#pragma once

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace gpupool::programs {

inline std::atomic<int> held_checks{0};
inline std::atomic<int> failed_checks{0};

__attribute__((format(printf, 2, 3))) inline bool check(bool held, const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (held ? held_checks : failed_checks).fetch_add(1);
    printf("%s %s\n", held ? "ok  " : "FAIL", text);
    fflush(stdout);
    return held;
}

// Prints information that is neither right nor wrong.
__attribute__((format(printf, 1, 2))) inline void note(const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("     %s\n", text);
    fflush(stdout);
}

// Ends the program when later checks would only repeat the first failure.
[[noreturn]] inline void give_up(const char* what, const char* why, const char* file, int line) {
    printf("FAIL %s: %s (%s:%d)\n", what, why, file, line);
    fflush(stdout);
    _exit(1);
}

inline int finish(const char* program) {
    const int failed = failed_checks.load();
    printf("%s: %d checks held, %d failed\n", program, held_checks.load(), failed);
    fflush(stdout);
    return failed == 0 && held_checks.load() > 0 ? 0 : 1;
}

// Ends a hung program, which would otherwise keep using a GPU that others may need.
inline void limit_seconds(unsigned seconds) {
    signal(SIGALRM, [](int) {
        static const char message[] = "FAIL the program did not end within its time limit\n";
        if (write(STDOUT_FILENO, message, sizeof message - 1) < 0) {
            _exit(125);
        }
        _exit(124);
    });
    alarm(seconds);
}

inline long long number_argument(int argc, char** argv, int index, long long otherwise) {
    return index < argc ? strtoll(argv[index], nullptr, 10) : otherwise;
}

}  // namespace gpupool::programs
