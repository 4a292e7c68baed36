// Modes that end in an unusual way. Each must end by itself, with status 0 unless noted.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/e2e/sessions/driver.h"

namespace gpupool::session_program {
namespace {

CUcontext the_context = nullptr;
CUdeviceptr the_memory = 0;

void hold_something() {
    the_context = begin();
    must(driver.cuMemAlloc(&the_memory, 1u << 20), "cuMemAlloc");
    must(driver.cuMemsetD8Async(the_memory, 1, 1u << 20, nullptr), "cuMemsetD8Async");
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
}

// Makes calls during teardown: any result will do, as long as the calls return.
void late_calls(const char* when) {
    unsigned char byte = 0;
    say(std::string(when) + ":set", driver.cuCtxSetCurrent(the_context));
    say(std::string(when) + ":copy", driver.cuMemcpyDtoH(&byte, the_memory, 1));
    say(std::string(when) + ":free", driver.cuMemFree(the_memory));
    say(std::string(when) + ":synchronize", driver.cuCtxSynchronize());
}

struct AtDestruction {
    bool active = false;
    ~AtDestruction() {
        if (active) {
            late_calls("destructor");
        }
    }
};
AtDestruction at_destruction;

std::atomic<int> calling{0};  // threads of keep_calling() that have made a call

// Makes calls without end in a thread of its own.
void keep_calling() {
    std::thread([] {
        use(the_context);
        std::vector<unsigned char> host(1u << 20);
        for (bool first = true;; first = false) {
            if (driver.cuMemcpyHtoD(the_memory, host.data(), host.size()) != CUDA_SUCCESS ||
                driver.cuMemcpyDtoH(host.data(), the_memory, host.size()) != CUDA_SUCCESS) {
                return;
            }
            if (first) {
                ++calling;
                calling.notify_all();
            }
        }
    }).detach();
}

// Closes the library while it has work: its threads must still run it, or fail now.
void close_with_work() {
    static std::atomic<bool> ran{false};
    CUstream stream = nullptr;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    block_until_release(stream);
    must(driver.cuLaunchHostFunc(
             stream,
             [](void*) {
                 ran = true;
                 ran.notify_all();
             },
             nullptr),
         "cuLaunchHostFunc");
    driver.close();
    release();
    ran.wait(false);
}

// Checks that every thread but this one blocks the signals that are sent to the process.
int signals_are_ours() {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream status(task.path() / "status");
        std::string word, name, blocked;
        while (status >> word && word != "SigBlk:") {
            if (word == "Name:") {
                status >> name;
            }
        }
        status >> blocked;
        const bool is_this = task.path().filename() == std::to_string(::gettid());
        if (!is_this && (std::stoull(blocked, nullptr, 16) & (1ull << (SIGUSR1 - 1))) == 0) {
            say("takes_signals:" + name);
            return 10;
        }
    }
    return 0;
}

// Run while all of the client's threads exist.
int run_signals() {
    must(driver.cuLaunchHostFunc(
             nullptr, [](void*) {}, nullptr),
         "cuLaunchHostFunc");
    void* mapped = nullptr;
    must(driver.cuMemHostAlloc(&mapped, 4096, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    must(driver.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(mapped), 1, 4096, nullptr), "cuMemsetD8Async");
    std::vector<unsigned char> much(8u << 20);
    CUdeviceptr data = 0;
    must(driver.cuMemAlloc(&data, much.size()), "cuMemAlloc");
    must(driver.cuMemcpyHtoD(data, much.data(), much.size()), "cuMemcpyHtoD");
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    return signals_are_ours();
}

int child_status(pid_t child) {
    int status = -1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

// Children of a process whose other threads are inside calls: CUDA is not available to them, and calls return an error.
int fork_busy() {
    for (int i = 0; i < 3; ++i) {
        keep_calling();
    }
    for (int round = 0; round < 30; ++round) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);
            std::size_t free_bytes = 0, total_bytes = 0;
            const bool refused = driver.cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED &&
                                 driver.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                                 driver.cuMemGetInfo(&free_bytes, &total_bytes) == CUDA_ERROR_NOT_INITIALIZED;
            if (round % 2 == 0) {
                std::_Exit(refused ? 0 : 7);
            }
            std::exit(refused ? 0 : 7);
        }
        if (const int status = child_status(child); status != 0) {
            say("child", status);
            return 8;
        }
    }
    // The parent's session still works.
    unsigned char byte = 0;
    must(driver.cuMemsetD8Async(the_memory, 9, 1, nullptr), "cuMemsetD8Async");
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    must(driver.cuMemcpyDtoH(&byte, the_memory, 1), "cuMemcpyDtoH");
    return 0;
}

int fork_exec(char** argv) {
    for (int i = 0; i < 2; ++i) {
        keep_calling();
    }
    const pid_t child = fork();
    if (child == 0) {
        execl(argv[0], argv[0], "visit", nullptr);
        std::_Exit(9);
    }
    if (const int status = child_status(child); status != 0) {
        say("child", status);
        return 8;
    }
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    return 0;
}

int reload() {
    close_with_work();
    driver.load();
    // The same library or one loaded anew; either must work.
    hold_something();
    return 0;
}

[[noreturn]] void exit_elsewhere() {
    std::thread([] { std::exit(0); }).detach();
    while (true) {
        (void)driver.cuCtxSynchronize();
    }
}

}  // namespace

int run_ending(const std::string& mode, char** argv) {
    if (mode == "atexit") {
        std::atexit([] { late_calls("atexit"); });  // registered before the library registers its own handlers
    }
    hold_something();
    if (mode == "visit" || mode == "atexit") {
        return 0;
    }
    if (mode == "signals") {
        return run_signals();
    }
    if (mode == "late_atexit") {
        std::atexit([] { late_calls("atexit"); });
        return 0;
    }
    if (mode == "destructor") {
        at_destruction.active = true;
        return 0;
    }
    if (mode == "exit_busy") {
        for (int i = 0; i < 4; ++i) {
            keep_calling();
        }
        for (int now = calling; now < 4; now = calling) {
            calling.wait(now);
        }
        return 0;
    }
    if (mode == "exit_elsewhere") {
        exit_elsewhere();
    }
    if (mode == "quick_exit") {
        std::quick_exit(0);
    }
    if (mode == "close") {
        close_with_work();
        return 0;
    }
    if (mode == "reload") {
        return reload();
    }
    if (mode == "fork_exec") {
        return fork_exec(argv);
    }
    if (mode == "fork_busy") {
        return fork_busy();
    }
    say("unknown_mode");
    return 98;
}

}  // namespace gpupool::session_program
