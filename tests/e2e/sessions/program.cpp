// The program that the session tests kill, cut off and watch: gpupool_session_program MODE.
//
//   steady   checks results without end, until stdin ends; exits with 0 when all were right. For each byte that it
//            reads, and for the end, it checks further results, and then prints "checked:N" for the Nth byte.
//   busy     uses many kinds of calls without end, prints "ready" after the first round
//   others   see the other program_*.cpp

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/e2e/sessions/driver.h"
#include "tests/support/waiting.h"

namespace gpupool::session_program {

Driver driver;

#define SESSION_TEXT(name) #name
#define SESSION_SYMBOL(name) SESSION_TEXT(name)

void Driver::load() {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::_Exit(99);
    }
#define SESSION_FIND(function)                                                                 \
    function = reinterpret_cast<decltype(function)>(dlsym(library, SESSION_SYMBOL(function))); \
    if (function == nullptr) {                                                                 \
        std::fprintf(stderr, "there is no %s\n", SESSION_SYMBOL(function));                    \
        std::_Exit(99);                                                                        \
    }
    SESSION_FUNCTIONS(SESSION_FIND)
#undef SESSION_FIND
}

void Driver::close() {
    dlclose(library);
    library = nullptr;
}

namespace {
std::atomic<bool> released{false};
}

void expect(bool right, const char* what) {
    must(right ? CUDA_SUCCESS : CUDA_ERROR_ASSERT, what);
}

std::size_t free_bytes() {
    std::size_t free = 0, total = 0;
    must(driver.cuMemGetInfo(&free, &total), "cuMemGetInfo");
    return free;
}

void await_end_of_input() {
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
}

void block_until_release(CUstream stream) {
    must(driver.cuLaunchHostFunc(
             stream, [](void*) { released.wait(false); }, nullptr),
         "cuLaunchHostFunc");
}

void release() {
    released = true;
    released.notify_all();
}

ReleaseWhenBlocked::ReleaseWhenBlocked()
    : thread_([this, caller = ::gettid()] {
          (void)test::eventually(
              [&] { return over_ || test::is_blocked(::getpid(), caller, std::chrono::milliseconds(50)); });
          blocked_ = !over_;
          release();
      }) {}

bool ReleaseWhenBlocked::end() {
    over_ = true;
    thread_.join();
    return blocked_;
}

void say(const std::string& word, long long number) {
    std::printf("%s %lld\n", word.c_str(), number);
    std::fflush(stdout);
}

void must(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) {
        say(std::string("failed:") + what, result);
        std::_Exit(3);
    }
}

std::int64_t now_ms() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void use(CUcontext context) {
    must(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

CUcontext begin() {
    must(driver.cuInit(0), "cuInit");
    CUcontext context = nullptr;
    must(driver.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    use(context);
    return context;
}

std::string kernels_ptx() {
    std::ifstream file(std::getenv("SESSION_KERNELS"));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

CUfunction kernel(const char* name) {
    static CUmodule module = nullptr;
    if (module == nullptr) {
        must(driver.cuModuleLoadData(&module, kernels_ptx().c_str()), "cuModuleLoadData");
    }
    CUfunction function = nullptr;
    must(driver.cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
    return function;
}

void add(CUfunction add_value, CUdeviceptr data, unsigned words, unsigned value, CUstream stream) {
    void* arguments[] = {&data, &words, &value};
    must(driver.cuLaunchKernel(add_value, (words + 255) / 256, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr),
         "cuLaunchKernel");
}

namespace {

constexpr unsigned kWords = 40'000;  // more than a command carries

void check_words(const std::vector<unsigned>& words, unsigned expected) {
    if (!std::all_of(words.begin(), words.end(), [&](unsigned word) { return word == expected; })) {
        say("wrong", words.front());
        std::_Exit(4);
    }
}

int run_steady() {
    begin();
    const CUfunction function = kernel("add_value");
    CUstream stream = nullptr;
    CUdeviceptr data = 0;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuMemAlloc(&data, kWords * sizeof(unsigned)), "cuMemAlloc");
    std::mutex mutex;
    std::condition_variable changed;
    int asked = 0;
    bool over = false;
    std::thread watch([&] {
        char byte = 0;
        while (::read(STDIN_FILENO, &byte, 1) > 0) {
            const std::lock_guard lock(mutex);
            ++asked;
            changed.notify_one();
        }
        const std::lock_guard lock(mutex);
        over = true;
        changed.notify_one();
    });
    long long rounds = 0;
    const auto check_once = [&] {
        const auto value = static_cast<unsigned>(rounds % 1000);
        std::vector<unsigned> words(kWords, value);
        must(driver.cuMemcpyHtoDAsync(data, words.data(), words.size() * sizeof(unsigned), stream), "cuMemcpyHtoD");
        add(function, data, kWords, 5, stream);
        must(driver.cuMemcpyDtoHAsync(words.data(), data, words.size() * sizeof(unsigned), stream), "cuMemcpyDtoH");
        must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
        check_words(words, value + 5);
        ++rounds;
    };
    check_once();
    say("ready");
    bool last = false;
    for (int answered = 0; !last;) {
        std::unique_lock lock(mutex);
        // The pause leaves the processors to the session under test.
        changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return over || asked > answered; });
        last = over;
        const int now_asked = asked;
        lock.unlock();
        const int checks = last || now_asked > answered ? 3 : 1;
        for (int i = 0; i < checks; ++i) {
            check_once();
        }
        while (answered < now_asked) {
            say("checked:" + std::to_string(++answered), rounds);
        }
    }
    watch.join();
    say("rounds", rounds);
    return 0;
}

int run_busy() {
    const CUcontext context = begin();
    const CUfunction function = kernel("add_value");
    const auto work = [&](bool tell) {
        use(context);
        std::vector<unsigned> words(1u << 20, 7);
        for (bool first = true;; first = false) {
            CUstream stream = nullptr;
            CUevent event = nullptr;
            CUdeviceptr data = 0;
            must(driver.cuStreamCreate(&stream, CU_STREAM_DEFAULT), "cuStreamCreate");
            must(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
            must(driver.cuMemAlloc(&data, words.size() * sizeof(unsigned)), "cuMemAlloc");
            must(driver.cuMemcpyHtoDAsync(data, words.data(), words.size() * sizeof(unsigned), stream), "copy in");
            for (unsigned i = 0; i < 20; ++i) {
                add(function, data, kWords, 1, stream);
            }
            must(driver.cuLaunchHostFunc(
                     stream, [](void*) {}, nullptr),
                 "cuLaunchHostFunc");
            must(driver.cuMemcpyDtoHAsync(words.data(), data, words.size() * sizeof(unsigned), stream), "copy out");
            must(driver.cuEventRecord(event, stream), "cuEventRecord");
            must(driver.cuEventSynchronize(event), "cuEventSynchronize");
            must(driver.cuMemFree(data), "cuMemFree");
            must(driver.cuEventDestroy(event), "cuEventDestroy");
            must(driver.cuStreamDestroy(stream), "cuStreamDestroy");
            if (first && tell) {
                say("ready");
            }
        }
    };
    std::thread(work, false).detach();
    work(true);
    return 0;
}

}  // namespace
}  // namespace gpupool::session_program

int main(int argc, char** argv) {
    using namespace gpupool::session_program;
    alarm(600);  // ends a hung program; long enough for a bystander to outlast its test on a slow machine
    const std::string mode = argc > 1 ? argv[1] : "";
    driver.load();
    if (mode == "steady") {
        return run_steady();
    }
    if (mode == "busy") {
        return run_busy();
    }
    int verdict = run_waiting(mode);
    verdict = verdict >= 0 ? verdict : run_calls(mode);
    verdict = verdict >= 0 ? verdict : run_graph_modes(mode);
    verdict = verdict >= 0 ? verdict : run_flood(mode);
    verdict = verdict >= 0 ? verdict : run_lanes(mode, argc > 2 ? std::atoi(argv[2]) : 1);
    verdict = verdict >= 0 ? verdict : run_pinned(mode);
    verdict = verdict >= 0 ? verdict : run_memory(mode);
    verdict = verdict >= 0 ? verdict : run_quotas(mode);
    verdict = verdict >= 0 ? verdict : run_limits(mode);
    verdict = verdict >= 0 ? verdict : run_stress(mode);
    verdict = verdict >= 0 ? verdict : run_versions(mode);
    return verdict >= 0 ? verdict : run_ending(mode, argv);
}
