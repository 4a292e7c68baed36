#include <vector>

#include "tests/gpu/driver.h"
#include "tests/gpu/errors.h"
#include "tests/gpu/images.h"

namespace gpupool::programs {

namespace {

CUresult launch_sized(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned block_x, unsigned block_z,
                      unsigned shared_bytes, CUdeviceptr to) {
    unsigned value = 1;
    void* parameters[] = {&to, &value};
    return cuLaunchKernel(function, grid_x, grid_y, 1, block_x, 1, block_z, shared_bytes, nullptr, parameters, nullptr);
}

}  // namespace

void launch_mistakes() {
    const Module module(kernels_ptx().data);
    const CUfunction store = module.function("store_word"), bounded = module.function("bounded");
    CUdeviceptr to = 0;
    DRIVER_OK(cuMemAlloc(&to, 1024));
    report("launch_4096_threads", launch_sized(store, 1, 1, 4096, 1, 0, to), {CUDA_ERROR_INVALID_VALUE});
    report("launch_deep_block", launch_sized(store, 1, 1, 1, 128, 0, to), {CUDA_ERROR_INVALID_VALUE});
    report("launch_empty_grid", launch_sized(store, 0, 1, 1, 1, 0, to), {CUDA_ERROR_INVALID_VALUE});
    report("launch_empty_block", launch_sized(store, 1, 1, 0, 1, 0, to), {CUDA_ERROR_INVALID_VALUE});
    report("launch_tall_grid", launch_sized(store, 1, 70'000, 1, 1, 0, to), {CUDA_ERROR_INVALID_VALUE});
    report("launch_wide_grid", launch_sized(store, 0x80000000u, 1, 1, 1, 0, to), {CUDA_ERROR_INVALID_VALUE});
    report("launch_100_mib_shared", launch_sized(store, 1, 1, 1, 1, 100 << 20, to), {CUDA_ERROR_INVALID_VALUE});
    report("launch_64_kib_shared", launch_sized(store, 1, 1, 1, 1, 64 << 10, to), {CUDA_ERROR_INVALID_VALUE});
    void* parameters[] = {&to, nullptr};
    report("launch_beyond_launch_bounds", cuLaunchKernel(bounded, 1, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr),
           {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES});
    report("set_shared_attribute_too_large",
           cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 20),
           {CUDA_ERROR_INVALID_VALUE});
    report("launch_after_mistakes", launch_sized(store, 1, 1, 1, 1, 0, to), {CUDA_SUCCESS});
    report("synchronize_after_mistakes", cuCtxSynchronize(), {CUDA_SUCCESS});
    DRIVER_OK(cuMemFree(to));
}

void memory_mistakes() {
    CUdeviceptr block = 0, none = 0;
    report("alloc_1_pib", cuMemAlloc(&block, size_t{1} << 50), {CUDA_ERROR_OUT_OF_MEMORY});
    report("alloc_nothing", cuMemAlloc(&block, 0), {CUDA_ERROR_INVALID_VALUE});
    report("alloc_host_nothing", cuMemHostAlloc(reinterpret_cast<void**>(&block), 0, 0),
           {CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS});
    report("alloc_to_null", cuMemAlloc(nullptr, 1024), {CUDA_ERROR_INVALID_VALUE});
    size_t pitch = 0;
    report("alloc_pitch_bad_element", cuMemAllocPitch(&block, &pitch, 100, 10, 5), {CUDA_ERROR_INVALID_VALUE});
    DRIVER_OK(cuMemAlloc(&block, 1024));
    report("memset_misaligned", cuMemsetD32(block + 2, 0, 4), {CUDA_ERROR_INVALID_VALUE});
    report("address_range_of_none", cuMemGetAddressRange(&none, &pitch, 0x1000),
           {CUDA_ERROR_NOT_FOUND, CUDA_ERROR_INVALID_VALUE});
    std::vector<char> host(64 << 10);
    report("copy_to_null", cuMemcpyHtoD(0, host.data(), 64), {CUDA_ERROR_INVALID_VALUE});
    report("copy_from_null", cuMemcpyDtoH(host.data(), 0, 64), {CUDA_ERROR_INVALID_VALUE});
    report("copy_beyond_end", cuMemcpyHtoD(block, host.data(), host.size()), {CUDA_ERROR_INVALID_VALUE});
    report("copy_out_beyond_end", cuMemcpyDtoH(host.data(), block, host.size()), {CUDA_ERROR_INVALID_VALUE});
    report("memset_beyond_end", cuMemsetD8(block, 0, host.size()), {CUDA_ERROR_INVALID_VALUE});
    report("write_value_nowhere", cuStreamWriteValue32(nullptr, 0x1000, 1, 0), {});
    report("write_value_misaligned", cuStreamWriteValue32(nullptr, block + 1, 1, 0), {});
    report("write_value_bad_flags", cuStreamWriteValue32(nullptr, block, 1, 77), {});
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxGetCurrent(&context));
    report("peer_copy_nowhere", cuMemcpyPeerAsync(0x1000, context, block, context, 64, nullptr), {});
    report("peer_copy_without_context", cuMemcpyPeerAsync(block, context, block + 512, nullptr, 64, nullptr),
           {CUDA_SUCCESS, CUDA_ERROR_INVALID_CONTEXT});  // a driver may use the address's own context
    report("memset_nowhere", cuMemsetD8Async(0x1000, 0, 64, nullptr), {CUDA_ERROR_INVALID_VALUE});
    report("copy_to_nowhere", cuMemcpyHtoD(0x1000, host.data(), 64), {CUDA_ERROR_INVALID_VALUE});
    report("copy_from_nowhere", cuMemcpyDtoH(host.data(), 0x1000, 64), {CUDA_ERROR_INVALID_VALUE});
    report("free_inside", cuMemFree(block + 256), {CUDA_ERROR_INVALID_VALUE});
    report("free", cuMemFree(block), {CUDA_SUCCESS});
    report("copy_to_freed", cuMemcpyHtoD(block, host.data(), 64), {CUDA_ERROR_INVALID_VALUE});
    report("copy_from_freed", cuMemcpyDtoH(host.data(), block, 64), {CUDA_ERROR_INVALID_VALUE});
    report("free_twice", cuMemFree(block), {CUDA_ERROR_INVALID_VALUE});
    report("free_bad_pointer", cuMemFree(0x1000), {CUDA_ERROR_INVALID_VALUE});
    report("reserve_nothing", cuMemAddressReserve(&block, 0, 0, 0, 0), {CUDA_ERROR_INVALID_VALUE});
    report("reserve_unaligned_size", cuMemAddressReserve(&block, 12345, 0, 0, 0), {});
    report("free_unreserved", cuMemAddressFree(0x7e0000000000, 2 << 20), {});
}

void reservation_mistakes() {
    constexpr size_t kPart = 2 << 20;
    CUdeviceptr block = 0, range = 0, beside = 0;
    DRIVER_OK(cuMemAlloc(&block, 16 * kPart));
    report("free_of_an_allocation", cuMemAddressFree(block, 16 * kPart), {CUDA_ERROR_INVALID_VALUE});
    DRIVER_OK(cuMemAddressReserve(&range, 4 * kPart, 0, 0, 0));
    report("free_its_beginning", cuMemAddressFree(range, 2 * kPart), {CUDA_ERROR_INVALID_VALUE});
    report("free_its_middle", cuMemAddressFree(range + kPart, kPart), {CUDA_ERROR_INVALID_VALUE});
    report("free_beyond_it", cuMemAddressFree(range, 8 * kPart), {CUDA_ERROR_INVALID_VALUE});
    report("free_nothing_of_it", cuMemAddressFree(range, 0), {CUDA_ERROR_INVALID_VALUE});
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle memory = 0;
    DRIVER_OK(cuMemCreate(&memory, kPart, &properties, 0));
    report("map_an_allocation", cuMemMap(block, kPart, 0, memory, 0), {CUDA_ERROR_INVALID_VALUE});
    report("map_unreserved", cuMemMap(range + 64 * kPart, kPart, 0, memory, 0), {CUDA_ERROR_INVALID_VALUE});
    report("map_beyond", cuMemMap(range + 4 * kPart, kPart, 0, memory, 0), {CUDA_ERROR_INVALID_VALUE});
    DRIVER_OK(cuMemMap(range + kPart, kPart, 0, memory, 0));
    report("map_twice", cuMemMap(range + kPart, kPart, 0, memory, 0), {CUDA_ERROR_INVALID_VALUE});
    report("free_mapped", cuMemAddressFree(range, 4 * kPart), {CUDA_ERROR_INVALID_VALUE});
    report("unmap", cuMemUnmap(range + kPart, kPart), {CUDA_SUCCESS});
    report("free_reserved", cuMemAddressFree(range, 4 * kPart), {CUDA_SUCCESS});
    report("free_reserved_twice", cuMemAddressFree(range, 4 * kPart), {CUDA_ERROR_INVALID_VALUE});
    report("map_freed", cuMemMap(range, kPart, 0, memory, 0), {CUDA_ERROR_INVALID_VALUE});
    DRIVER_OK(cuMemRelease(memory));
    // None of these may have freed the memory.
    CUdeviceptr other = 0;
    DRIVER_OK(cuMemAlloc(&other, 16 * kPart));
    DRIVER_OK(cuMemAddressReserve(&beside, 2 * kPart, 0, block, 0));
    report("reserved_apart",
           beside + 2 * kPart <= block || beside >= block + 16 * kPart ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN,
           {CUDA_SUCCESS});
    DRIVER_OK(cuMemAddressFree(beside, 2 * kPart));
    DRIVER_OK(cuMemFree(other));
    DRIVER_OK(cuMemFree(block));
}

void module_mistakes() {
    const Module module(kernels_ptx().data);
    CUfunction function = nullptr;
    CUmodule other = nullptr;
    CUdeviceptr address = 0;
    size_t bytes = 0;
    static const char garbage[4096] = "this is no code of any kind\n";
    static const char broken_ptx[] =
        ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry broken() { nonsense.u32 %r1; ret; }\n";
    static const char future_ptx[] = ".version 99.0\n.target sm_75\n.address_size 64\n.visible .entry f() { ret; }\n";
    report("function_missing", cuModuleGetFunction(&function, module.get(), "no_such_kernel"), {CUDA_ERROR_NOT_FOUND});
    report("function_empty_name", cuModuleGetFunction(&function, module.get(), ""), {});
    report("global_missing", cuModuleGetGlobal(&address, &bytes, module.get(), "no_such_global"),
           {CUDA_ERROR_NOT_FOUND});
    report("load_null", cuModuleLoadData(&other, nullptr), {CUDA_ERROR_INVALID_VALUE});
    report("load_garbage", cuModuleLoadData(&other, garbage), {CUDA_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_IMAGE});
    report("load_broken_ptx", cuModuleLoadData(&other, broken_ptx), {CUDA_ERROR_INVALID_PTX});
    report("load_ptx_of_the_future", cuModuleLoadData(&other, future_ptx),
           {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_INVALID_PTX});
    report("load_missing_file", cuModuleLoad(&other, "/nowhere/at/all.cubin"), {CUDA_ERROR_FILE_NOT_FOUND});
    CUlibrary library = nullptr;
    report("library_load_garbage", cuLibraryLoadData(&library, garbage, nullptr, nullptr, 0, nullptr, nullptr, 0),
           {CUDA_SUCCESS, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_IMAGE});
    CUkernel kernel = nullptr;
    if (library != nullptr) {  // a driver that loads lazily detects the error later
        report("library_garbage_kernel", cuLibraryGetKernel(&kernel, library, "store_word"), {});
        report("library_garbage_unload", cuLibraryUnload(library), {CUDA_SUCCESS});
    }
    DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
    report("library_kernel_missing", cuLibraryGetKernel(&kernel, library, "no_such_kernel"), {CUDA_ERROR_NOT_FOUND});
    report("library_global_missing", cuLibraryGetGlobal(&address, &bytes, library, "no_such_global"),
           {CUDA_ERROR_NOT_FOUND});
    DRIVER_OK(cuLibraryUnload(library));
}

void device_mistakes() {
    CUdevice device = -1;
    int value = 0;
    report("init_with_flags", cuInit(1), {CUDA_ERROR_INVALID_VALUE});
    report("device_999", cuDeviceGet(&device, 999), {CUDA_ERROR_INVALID_DEVICE});
    report("device_minus_1", cuDeviceGet(&device, -1), {CUDA_ERROR_INVALID_DEVICE});
    report("attribute_unknown", cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(9999), 0),
           {CUDA_ERROR_INVALID_VALUE});
    report("attribute_device_999", cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 999),
           {CUDA_ERROR_INVALID_DEVICE});
    char name[16];
    report("name_device_999", cuDeviceGetName(name, sizeof name, 999), {CUDA_ERROR_INVALID_DEVICE});
    report("by_bad_pci_bus_id", cuDeviceGetByPCIBusId(&device, "no bus id"), {});
    const char* text = nullptr;
    report("error_name_of_none", cuGetErrorName(static_cast<CUresult>(12345), &text), {CUDA_ERROR_INVALID_VALUE});
    const void* table = nullptr;
    const CUuuid unknown = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};
    report("export_table_unknown", cuGetExportTable(&table, &unknown), {CUDA_ERROR_INVALID_VALUE});
}

void event_mistakes() {
    CUevent first = nullptr, second = nullptr, untimed = nullptr;
    float milliseconds = 0;
    DRIVER_OK(cuEventCreate(&first, CU_EVENT_DEFAULT));
    DRIVER_OK(cuEventCreate(&second, CU_EVENT_DEFAULT));
    DRIVER_OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    report("elapsed_never_recorded", cuEventElapsedTime(&milliseconds, first, second), {CUDA_ERROR_INVALID_HANDLE});
    report("query_never_recorded", cuEventQuery(first), {CUDA_SUCCESS});
    DRIVER_OK(cuEventRecord(first, nullptr));
    DRIVER_OK(cuEventRecord(untimed, nullptr));
    DRIVER_OK(cuCtxSynchronize());
    report("elapsed_untimed", cuEventElapsedTime(&milliseconds, first, untimed), {CUDA_ERROR_INVALID_HANDLE});
    CUevent wrong = nullptr;
    report("event_bad_flags", cuEventCreate(&wrong, 0xffff0000u), {CUDA_ERROR_INVALID_VALUE});
    report("event_interprocess_timed", cuEventCreate(&wrong, CU_EVENT_INTERPROCESS), {CUDA_ERROR_INVALID_VALUE});
    CUstream stream = nullptr;
    report("stream_bad_flags", cuStreamCreate(&stream, 0xffff0000u), {CUDA_ERROR_INVALID_VALUE});
    CUgraph graph = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    report("end_capture_of_none", cuStreamEndCapture(stream, &graph), {});
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuEventDestroy(first));
    DRIVER_OK(cuEventDestroy(second));
    DRIVER_OK(cuEventDestroy(untimed));
}

// A failed call reports its error itself, or the next wait for its stream does, once. No other stream's wait does.
void whose_mistakes() {
    CUstream own = nullptr, others = nullptr;
    CUevent event = nullptr;
    DRIVER_OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamCreate(&others, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr block = 0;
    DRIVER_OK(cuMemAllocAsync(&block, 1024, own));
    DRIVER_OK(cuStreamSynchronize(own));
    const auto fails = [&] { return cuMemsetD8Async(block, 1, size_t{1} << 40, own); };
    // Checks that `call` or `later`, but not both, reported the error.
    const auto expect_reported_once = [](const char* what, CUresult call, CUresult later) {
        check_result(call == CUDA_SUCCESS ? later : call, CUDA_ERROR_INVALID_VALUE, what);
        check(call == CUDA_SUCCESS || later == CUDA_SUCCESS, "%s: the failure is reported once", what);
    };
    CUresult call = fails();
    check_result(cuStreamSynchronize(others), CUDA_SUCCESS, "another stream's synchronization");
    expect_reported_once("its stream's synchronization", call, cuStreamSynchronize(own));
    check_result(cuStreamSynchronize(own), CUDA_SUCCESS, "the same again");
    call = fails();
    DRIVER_OK(cuEventRecord(event, others));
    check_result(cuEventSynchronize(event), CUDA_SUCCESS, "an event of another stream");
    DRIVER_OK(cuEventRecord(event, own));
    expect_reported_once("an event of its stream", call, cuEventSynchronize(event));
    call = fails();
    DRIVER_OK(cuStreamSynchronize(others));
    expect_reported_once("the context's synchronization", call, cuCtxSynchronize());
    call = fails();
    DRIVER_OK(cuStreamDestroy(own));
    DRIVER_OK(cuStreamSynchronize(others));
    expect_reported_once("the context's synchronization, its stream being destroyed", call, cuCtxSynchronize());
    check_result(cuCtxSynchronize(), CUDA_SUCCESS, "the same again");
    DRIVER_OK(cuMemFree(block));
    cuEventDestroy(event);
    cuStreamDestroy(others);
}

void registration_mistakes() {
    constexpr size_t kBytes = 16'384;
    auto* const memory = static_cast<char*>(aligned_alloc(4096, kBytes));
    memset(memory, 0, kBytes);
    CUdeviceptr address = 0;
    unsigned flags = 0;
    int on_stack = 0;
    report("unregister_unregistered", cuMemHostUnregister(memory), {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED});
    DRIVER_OK(cuMemHostRegister(memory, kBytes, 0));
    report("register_twice", cuMemHostRegister(memory, kBytes, 0), {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED});
    report("register_a_part", cuMemHostRegister(memory + 4096, 100, 0), {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED});
    DRIVER_OK(cuMemHostUnregister(memory));
    DRIVER_OK(cuMemHostRegister(memory + 4096, 4096, 0));
    report("register_around", cuMemHostRegister(memory, kBytes, 0), {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED});
    report("register_its_end", cuMemHostRegister(memory + 8000, 4096, 0), {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED});
    report("register_before_it", cuMemHostRegister(memory, 4096, 0), {CUDA_SUCCESS});
    DRIVER_OK(cuMemHostUnregister(memory));
    DRIVER_OK(cuMemHostUnregister(memory + 4096));
    void* pinned = nullptr;
    DRIVER_OK(cuMemHostAlloc(&pinned, kBytes, 0));
    report("register_pinned", cuMemHostRegister(pinned, kBytes, 0), {CUDA_ERROR_INVALID_VALUE});
    DRIVER_OK(cuMemFreeHost(pinned));
    report("flags_of_unregistered", cuMemHostGetFlags(&flags, memory), {CUDA_ERROR_INVALID_VALUE});
    report("free_host_stack", cuMemFreeHost(&on_stack), {CUDA_ERROR_INVALID_VALUE});
    unsigned type = 0;
    report("pointer_type_of_stack",
           cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&on_stack)),
           {CUDA_ERROR_INVALID_VALUE});
    report("pointer_attribute_unknown", cuPointerGetAttribute(&address, static_cast<CUpointer_attribute>(999), 0x1000),
           {CUDA_ERROR_INVALID_VALUE});
    report("register_nothing", cuMemHostRegister(memory, 0, 0), {CUDA_ERROR_INVALID_VALUE});
    free(memory);
}

}  // namespace gpupool::programs
