// The time from a program's start to its first kernel's result, and its parts.
//
//   gpupool_startup_benchmark [RUNS [IMAGE_BYTES [PAUSE_MS]]]
//
// Each run is its own process, one after the other, `PAUSE_MS` apart (so that a server can prepare the next worker).
// Its code image is PTX text of about `IMAGE_BYTES`, mostly a comment, and the same in all runs. A row gives the
// milliseconds since the process was started.
//
// Errors: a failing call ends the program, since benchmarks of failing calls are meaningless.
#include <cuda.h>
#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::array kSteps{"main", "cuInit", "context", "module", "result"};
using Times = std::array<double, kSteps.size()>;

constexpr const char* kKernel = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry answer(.param .u64 to) {
    .reg .u64 %place;
    .reg .u32 %value;
    ld.param.u64 %place, [to];
    mov.u32 %value, 42;
    st.global.u32 [%place], %value;
    ret;
}
)";

std::int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch().count();
}

template <class Function, class... Arguments>
void call(void* library, const char* name, Arguments... arguments) {
    const auto function = reinterpret_cast<Function>(dlsym(library, name));
    const CUresult result = function == nullptr ? CUDA_ERROR_NOT_FOUND : function(arguments...);
    if (result != CUDA_SUCCESS) {
        std::fprintf(stderr, "%s gives error %d: is this run with `gpupool run`?\n", name, static_cast<int>(result));
        std::exit(1);
    }
}
#define CALL(name, ...) call<decltype(&::name)>(library, #name, __VA_ARGS__)
#define CALL_V2(name, ...) call<decltype(&::name)>(library, #name "_v2", __VA_ARGS__)

int run_once(std::size_t image_bytes) {
    std::array<std::int64_t, kSteps.size()> times{now_ns()};
    const std::string code = "//" + std::string(image_bytes, ' ') + kKernel;
    times[0] = now_ns();
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) {
        std::fprintf(stderr, "%s: run this with `gpupool run`\n", dlerror());
        return 1;
    }
    CALL(cuInit, 0u);
    times[1] = now_ns();
    CUcontext context = nullptr;
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    times[2] = now_ns();
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CALL(cuModuleLoadData, &module, static_cast<const void*>(code.c_str()));
    CALL(cuModuleGetFunction, &function, module, "answer");
    times[3] = now_ns();
    CUdeviceptr place = 0;
    CALL_V2(cuMemAlloc, &place, sizeof(unsigned));
    void* arguments[] = {&place};
    CALL(cuLaunchKernel, function, 1u, 1u, 1u, 1u, 1u, 1u, 0u, static_cast<CUstream>(nullptr),
         static_cast<void**>(arguments), static_cast<void**>(nullptr));
    unsigned value = 0;
    CALL_V2(cuMemcpyDtoH, static_cast<void*>(&value), place, sizeof value);
    times[4] = now_ns();
    for (const std::int64_t time : times) {
        std::printf("%lld ", static_cast<long long>(time));
    }
    std::printf("\n");
    return value == 42 ? 0 : 1;
}

// The times of one run as it reports them, in milliseconds since `start_ns`.
Times measure(const char* self, const std::string& image_bytes) {
    int ends[2];
    if (pipe(ends) != 0) {
        std::exit(1);
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::string program = self, once = "--once", bytes = image_bytes;
    char* words[] = {program.data(), once.data(), bytes.data(), nullptr};
    pid_t process = -1;
    const std::int64_t start_ns = now_ns();
    const int failure = posix_spawn(&process, "/proc/self/exe", &actions, nullptr, words, environ);
    close(ends[1]);
    std::FILE* const said = fdopen(ends[0], "r");
    Times times{};
    bool whole = failure == 0;
    for (double& time : times) {
        long long at_ns = 0;
        whole = whole && std::fscanf(said, "%lld", &at_ns) == 1;
        time = static_cast<double>(at_ns - start_ns) / 1e6;
    }
    std::fclose(said);
    posix_spawn_file_actions_destroy(&actions);
    int status = 0;
    if (!whole || waitpid(process, &status, 0) != process || status != 0) {
        std::exit(1);
    }
    return times;
}

void print(const std::string& name, const Times& times) {
    std::printf("%-8s", name.c_str());
    for (const double time : times) {
        std::printf(" %9.2f", time);
    }
    std::printf("\n");
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    const auto word = [&](int index, const char* otherwise) {
        return std::string(argc > index ? argv[index] : otherwise);
    };
    if (word(1, "") == "--once") {
        return run_once(std::stoul(word(2, "0")));
    }
    const unsigned long runs = std::stoul(word(1, "10")), pause_ms = std::stoul(word(3, "0"));
    std::printf("%-8s", "ms to");
    for (const char* step : kSteps) {
        std::printf(" %9s", step);
    }
    std::printf("\n");
    std::vector<Times> all;
    for (unsigned long i = 0; i < runs; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
        all.push_back(measure(argv[0], word(2, "0")));
        if (i == 0) {
            print("first", all.front());
        }
    }
    Times medians{}, least{};
    for (std::size_t step = 0; step < kSteps.size(); ++step) {
        std::vector<double> of_step;
        for (const Times& times : all) {
            of_step.push_back(times[step]);
        }
        std::sort(of_step.begin(), of_step.end());
        medians[step] = of_step[of_step.size() / 2];
        least[step] = of_step.front();
    }
    print("median", medians);
    print("least", least);
}
