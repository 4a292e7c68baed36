// Older and rarer ways to load, link, launch and ask: the launch API from before CUDA 4, the first form of the linker,
// files, states of functions, the occupancy calculator's other questions.
#include <fstream>
#include <string>

#include "tests/gpu/images.h"
#include "tests/gpu/modules.h"

// Deprecated calls are what this file tests.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace gpupool::programs {
namespace {

// A file that is deleted at the end.
class File {
  public:
    explicit File(const Image& image) {
        const int descriptor = mkstemp(path_);
        if (descriptor < 0) {
            give_up("mkstemp", strerror(errno), __FILE__, __LINE__);
        }
        close(descriptor);
        std::ofstream(path_, std::ios::binary)
            .write(static_cast<const char*>(image.data), static_cast<long>(image.bytes));
    }
    ~File() { unlink(path_); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    const char* path() const { return path_; }

  private:
    char path_[32] = "/tmp/gpupool-image-XXXXXX";
};

unsigned read_word(CUdeviceptr from) {
    unsigned word = 0;
    DRIVER_OK(cuMemcpyDtoH(&word, from, sizeof word));
    return word;
}

// The form of a call that programs of that version of CUDA use.
template <class Function>
Function form_of(const char* name, int version) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status{};
    DRIVER_OK(cuGetProcAddress(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    if (address == nullptr) {
        give_up(name, "not found", __FILE__, __LINE__);
    }
    return reinterpret_cast<Function>(address);
}

using Create = CUresult (*)(unsigned, CUjit_option*, void**, CUlinkState*);
using AddData = CUresult (*)(CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned, CUjit_option*, void**);
using AddFile = CUresult (*)(CUlinkState, CUjitInputType, const char*, unsigned, CUjit_option*, void**);

void run_linked(const void* image, const char* what) {
    const Module module(image);
    CUdeviceptr out = 0;
    unsigned seen[8] = {};
    DRIVER_OK(cuMemAlloc(&out, sizeof seen));
    DRIVER_OK(launch(module.function("call_linked"), 1, 8, nullptr, out));
    DRIVER_OK(cuMemcpyDtoH(seen, out, sizeof seen));
    check(seen[0] == 1 && seen[7] == 50, "%s", what);
    DRIVER_OK(cuMemFree(out));
}

}  // namespace

void legacy_launches() {
    const Module module(kernels_ptx().data);
    const CUfunction store = module.function("store_word");
    CUdeviceptr out = 0;
    DRIVER_OK(cuMemAlloc(&out, 64));
    DRIVER_OK(cuFuncSetBlockShape(store, 1, 1, 1));
    DRIVER_OK(cuFuncSetSharedSize(store, 64));
    DRIVER_OK(cuParamSetSize(store, 12));
    DRIVER_OK(cuParamSetv(store, 0, &out, sizeof out));
    DRIVER_OK(cuParamSeti(store, 8, 41));
    DRIVER_OK(cuLaunch(store));
    check(read_word(out) == 41, "cuLaunch");
    DRIVER_OK(cuParamSeti(store, 8, 42));
    DRIVER_OK(cuLaunchGrid(store, 1, 1));
    check(read_word(out) == 42, "cuLaunchGrid");
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuParamSetf(store, 8, 1.0f));
    DRIVER_OK(cuLaunchGridAsync(store, 1, 1, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    check(read_word(out) == 0x3f800000, "cuLaunchGridAsync, with a float");
    DRIVER_OK(cuStreamDestroy(stream));

    const CUfunction add = module.function("add_value");
    CUdeviceptr data = 0;
    DRIVER_OK(cuMemAlloc(&data, 64 * sizeof(unsigned)));
    DRIVER_OK(cuMemsetD32(data, 1, 64));
    DRIVER_OK(cuFuncSetBlockShape(add, 16, 1, 1));
    DRIVER_OK(cuParamSetSize(add, 16));
    DRIVER_OK(cuParamSetv(add, 0, &data, sizeof data));
    DRIVER_OK(cuParamSeti(add, 8, 64));
    DRIVER_OK(cuParamSeti(add, 12, 9));
    DRIVER_OK(cuLaunchGrid(add, 4, 1));
    check(read_word(data) == 10 && read_word(data + 63 * 4) == 10, "four blocks of 16 threads");
    DRIVER_OK(cuMemFree(data));
    DRIVER_OK(cuMemFree(out));
}

void legacy_linker() {
    const auto create = form_of<Create>("cuLinkCreate", 5050);
    const auto add_data = form_of<AddData>("cuLinkAddData", 5050);
    const auto add_file = form_of<AddFile>("cuLinkAddFile", 5050);
    CUlinkState state = nullptr;
    void* image = nullptr;
    size_t bytes = 0;
    DRIVER_OK(create(0, nullptr, nullptr, &state));
    DRIVER_OK(add_data(state, CU_JIT_INPUT_PTX, const_cast<void*>(link_caller_ptx().data), link_caller_ptx().bytes + 1,
                       "caller", 0, nullptr, nullptr));
    const File callee(link_callee_ptx());
    DRIVER_OK(add_file(state, CU_JIT_INPUT_PTX, callee.path(), 0, nullptr, nullptr));
    DRIVER_OK(cuLinkComplete(state, &image, &bytes));
    run_linked(image, "linked by the calls of CUDA 5.5");
    DRIVER_OK(cuLinkDestroy(state));

    DRIVER_OK(cuLinkCreate(0, nullptr, nullptr, &state));
    const File caller(link_caller_ptx());
    DRIVER_OK(cuLinkAddFile(state, CU_JIT_INPUT_PTX, caller.path(), 0, nullptr, nullptr));
    DRIVER_OK(cuLinkAddFile(state, CU_JIT_INPUT_PTX, callee.path(), 0, nullptr, nullptr));
    DRIVER_OK(cuLinkComplete(state, &image, &bytes));
    run_linked(image, "linked from two files");
    DRIVER_OK(cuLinkDestroy(state));
    DRIVER_OK(cuLinkCreate(0, nullptr, nullptr, &state));
    check_result(cuLinkAddFile(state, CU_JIT_INPUT_PTX, "/tmp/gpupool-no-such-file", 0, nullptr, nullptr),
                 CUDA_ERROR_FILE_NOT_FOUND, "a file that is not there");
    DRIVER_OK(cuLinkDestroy(state));
}

void more_ways_to_load() {
    CUmodule module = nullptr;
    DRIVER_OK(cuModuleLoadFatBinary(&module, kernels_fatbin().data));
    CUfunction store = nullptr;
    DRIVER_OK(cuModuleGetFunction(&store, module, "store_word"));
    CUdeviceptr out = 0;
    DRIVER_OK(cuMemAlloc(&out, 64));
    DRIVER_OK(launch(store, 1, 1, nullptr, out, 7u));
    check(read_word(out) == 7, "a module from a fat binary");
    CUfunctionLoadingState loaded{};
    DRIVER_OK(cuFuncLoad(store));
    DRIVER_OK(cuFuncIsLoaded(&loaded, store));
    check(loaded == CU_FUNCTION_LOADING_STATE_LOADED, "a function that was launched is loaded");
    DRIVER_OK(cuFuncSetSharedMemConfig(store, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
    DRIVER_OK(cuModuleUnload(module));

    const File file(kernels_fatbin());
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    DRIVER_OK(cuLibraryLoadFromFile(&library, file.path(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    DRIVER_OK(cuLibraryGetKernel(&kernel, library, "store_word"));
    DRIVER_OK(cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_L1, 0));
    DRIVER_OK(launch(reinterpret_cast<CUfunction>(kernel), 1, 1, nullptr, out, 8u));
    check(read_word(out) == 8, "a library from a file");
    CUdeviceptr managed = 0;
    size_t bytes = 0;
    check_result(cuLibraryGetManaged(&managed, &bytes, library, "device_counter"), CUDA_ERROR_NOT_FOUND,
                 "a variable that is not managed");
    DRIVER_OK(cuLibraryUnload(library));
    check_result(cuLibraryLoadFromFile(&library, "/tmp/gpupool-no-such-file", nullptr, nullptr, 0, nullptr, nullptr, 0),
                 CUDA_ERROR_FILE_NOT_FOUND, "a library from a file that is not there");
    DRIVER_OK(cuMemFree(out));
}

void more_occupancy(const Device& device) {
    const Module module(kernels_ptx().data);
    const CUfunction add = module.function("add_value");
    int plain = 0, with_flags = 0, grid = 0, block = 0, grid_flags = 0, block_flags = 0;
    DRIVER_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&plain, add, 64, 0));
    DRIVER_OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&with_flags, add, 64, 0,
                                                                   CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE));
    check(plain == with_flags, "%d and %d blocks of 64 threads", plain, with_flags);
    const CUoccupancyB2DSize of_threads = [](int threads) { return static_cast<size_t>(threads) * 16; };
    DRIVER_OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, add, of_threads, 0, 256));
    DRIVER_OK(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid_flags, &block_flags, add, of_threads, 0, 256,
                                                        CU_OCCUPANCY_DEFAULT));
    check(grid == grid_flags && block == block_flags && block <= 256, "the best block of 256 threads at most: %d",
          block);
    size_t bytes = 0;
    DRIVER_OK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, add, 1, 64));
    const int most = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    check(bytes == static_cast<size_t>(most), "no more than a launch may ask for: %zu of %d bytes", bytes, most);
    if (device.attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) == 0) {
        return;
    }
    CUlaunchConfig config{8, 1, 1, 64, 1, 1, 0, nullptr, nullptr, 0};
    int size = 0, clusters = 0;
    DRIVER_OK(cuOccupancyMaxPotentialClusterSize(&size, add, &config));
    check(size == 8, "the largest portable cluster: %d blocks", size);
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {2, 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
    DRIVER_OK(cuOccupancyMaxActiveClusters(&clusters, add, &config));
    check(clusters > 0, "%d clusters of two blocks at once", clusters);
}

}  // namespace gpupool::programs
