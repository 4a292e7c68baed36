// A program whose server may have another version:
//
//   versions   makes calls that not every version knows, twice each, and says "trim RESULT", "limit RESULT", "link
//              RESULT", "granularity RESULT"; then does what every program does, and says "word NUMBER", which is 42

#include <dlfcn.h>

#include <string>

#include "tests/e2e/sessions/driver.h"

namespace gpupool::session_program {
namespace {

template <class Function>
Function* find(const char* name) {
    return reinterpret_cast<Function*>(dlsym(driver.library, name));
}

template <class Ask>
void ask(const std::string& word, Ask call) {
    const CUresult first = call(), second = call();
    say(word, first == second ? first : -1);
}

int run_versions_mode() {
    begin();
    CUmemoryPool pool = nullptr;
    must(driver.cuDeviceGetDefaultMemPool(&pool, 0), "cuDeviceGetDefaultMemPool");
    ask("trim", [&] { return driver.cuMemPoolTrimTo(pool, 0); });
    const auto limit = find<decltype(cuCtxGetLimit)>("cuCtxGetLimit");
    std::size_t bytes = 0;
    ask("limit", [&] { return limit(&bytes, CU_LIMIT_STACK_SIZE); });
    ask("link", [&] {
        CUlinkState state = nullptr;
        const CUresult result = driver.cuLinkCreate(0, nullptr, nullptr, &state);
        if (result == CUDA_SUCCESS) {
            driver.cuLinkDestroy(state);
        }
        return result;
    });
    const auto granularity = find<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    ask("granularity", [&] { return granularity(&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM); });

    CUstream stream = nullptr;
    CUdeviceptr data = 0;
    unsigned word = 40;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuMemAlloc(&data, sizeof word), "cuMemAlloc");
    must(driver.cuMemcpyHtoD(data, &word, sizeof word), "cuMemcpyHtoD");
    add(kernel("add_value"), data, 1, 2, stream);
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    must(driver.cuMemcpyDtoH(&word, data, sizeof word), "cuMemcpyDtoH");
    say("word", word);
    return 0;
}

}  // namespace

int run_versions(const std::string& mode) {
    return mode == "versions" ? run_versions_mode() : -1;
}

}  // namespace gpupool::session_program
