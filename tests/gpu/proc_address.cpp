// cuGetProcAddress, both versions: the function that a name, a version and flags give, and the result for unknown
// names. cuGetExportTable with an unknown id.
#include <dlfcn.h>

#include "tests/gpu/driver.h"

using namespace gpupool::programs;

namespace {

struct Answer {
    CUresult result;
    void* address;
    CUdriverProcAddressQueryResult status;
};

Answer ask(const char* name, int version, cuuint64_t flags = 0) {
    Answer answer{CUDA_ERROR_UNKNOWN, nullptr, static_cast<CUdriverProcAddressQueryResult>(-1)};
    answer.result = cuGetProcAddress(name, &answer.address, version, flags, &answer.status);
    return answer;
}

void* symbol(const char* name) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void* address = library != nullptr ? dlsym(library, name) : nullptr;
    if (address == nullptr) {
        give_up(name, "not exported by libcuda.so.1", __FILE__, __LINE__);
    }
    return address;
}

// The returned address may be the exported symbol's; the test checks only whether two names give the same function.
void check_same(const char* name, int version, cuuint64_t flags, const char* exported) {
    const Answer answer = ask(name, version, flags);
    check(answer.result == CUDA_SUCCESS && answer.status == CU_GET_PROC_ADDRESS_SUCCESS &&
              answer.address == symbol(exported),
          "%s, version %d, flags %llu is %s", name, version, static_cast<unsigned long long>(flags), exported);
}

void versions() {
    check_same("cuInit", 2000, 0, "cuInit");
    check_same("cuMemAlloc", 3020, 0, "cuMemAlloc_v2");
    check_same("cuMemAlloc", 13000, 0, "cuMemAlloc_v2");
    check_same("cuGetProcAddress", 11030, 0, "cuGetProcAddress");
    check_same("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2");
    check_same("cuCtxCreate", 11040, 0, "cuCtxCreate_v3");
    check_same("cuCtxCreate", 12050, 0, "cuCtxCreate_v4");
    check_same("cuEventElapsedTime", 12000, 0, "cuEventElapsedTime");
    check_same("cuEventElapsedTime", 12080, 0, "cuEventElapsedTime_v2");
    check_same("cuStreamGetCaptureInfo", 12030, 0, "cuStreamGetCaptureInfo_v3");
}

void stream_kinds() {
    const cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    check_same("cuLaunchKernel", 7000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, "cuLaunchKernel");
    check_same("cuLaunchKernel", 7000, per_thread, "cuLaunchKernel_ptsz");
    check_same("cuMemcpyHtoD", 7000, per_thread, "cuMemcpyHtoD_v2_ptds");
    check_same("cuMemAlloc", 13000, per_thread, "cuMemAlloc_v2");  // it has no per-thread variant
    const Answer old = ask("cuMemcpyHtoD", 6050, per_thread);
    check(old.result == CUDA_SUCCESS && old.address == nullptr &&
              old.status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
          "a per-thread form before its version is none, not the plain form (status %d)", old.status);
}

void absent_names() {
    const Answer unknown = ask("cuNoSuchFunction", 13000);
    check(unknown.result == CUDA_SUCCESS && unknown.address == nullptr &&
              unknown.status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
          "an unknown name (result %d, status %d)", unknown.result, unknown.status);
    const Answer too_new = ask("cuLibraryLoadData", 11080);
    check(too_new.result == CUDA_SUCCESS && too_new.address == nullptr &&
              too_new.status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
          "a name of a later version (result %d, status %d)", too_new.result, too_new.status);
    for (const char* name : {"cuMemAlloc_v2", "cuLaunchKernel_ptsz"}) {
        const Answer answer = ask(name, 13000);
        check(answer.address == nullptr && answer.status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "%s is no name",
              name);
    }
    const Answer empty = ask("", 0);
    check(empty.result == CUDA_SUCCESS && empty.address == nullptr, "the empty name (result %d)", empty.result);
    void* address = &address;
    check(cuGetProcAddress("cuNoSuchFunction", &address, 13000, 0, nullptr) == CUDA_SUCCESS && address == nullptr,
          "no place for the status is needed");
}

void mistakes() {
    int version = 0;
    DRIVER_OK(cuDriverGetVersion(&version));
    check_result(ask("cuInit", version + 10).result, CUDA_ERROR_INVALID_VALUE,
                 "a version that is newer than the driver");
    check_result(ask("cuInit", 13000, 4).result, CUDA_ERROR_INVALID_VALUE, "flags that are none");
    // Not tested: a null name, and a null place for the address. Driver 580 crashes on the former.
}

void first_version() {
    using First = CUresult (*)(const char*, void**, int, cuuint64_t);
    const auto first = reinterpret_cast<First>(symbol("cuGetProcAddress"));
    void* address = nullptr;
    check_result(first("cuMemAlloc", &address, 12000, 0), CUDA_SUCCESS, "cuGetProcAddress of CUDA 11.3");
    check(address == symbol("cuMemAlloc_v2"), "gives the same functions");
    check_result(first("cuNoSuchFunction", &address, 12000, 0), CUDA_ERROR_NOT_FOUND,
                 "and an error for an unknown name");
    check_result(first("cuLibraryLoadData", &address, 11080, 0), CUDA_ERROR_NOT_FOUND, "and for a later one");
}

void works() {
    using Count = CUresult (*)(int*);
    const auto count = reinterpret_cast<Count>(ask("cuDeviceGetCount", 13000).address);
    int devices = 0;
    check(count != nullptr && count(&devices) == CUDA_SUCCESS && devices >= 1, "a function found by name works");
    const void* table = nullptr;
    const CUuuid unknown = {{'n', 'o', 't', ' ', 'a', ' ', 't', 'a', 'b', 'l', 'e', ' ', 'i', 'd', '.', '.'}};
    check_result(cuGetExportTable(&table, &unknown), CUDA_ERROR_INVALID_VALUE, "an unknown export table");
}

}  // namespace

int main(int argc, char** argv) {
    Program program("proc_address", argc, argv);
    DRIVER_OK(cuInit(0));
    program.section("versions", versions);
    program.section("stream_kinds", stream_kinds);
    program.section("absent_names", absent_names);
    program.section("mistakes", mistakes);
    program.section("first_version", first_version);
    program.section("works", works);
    return program.finish();
}
