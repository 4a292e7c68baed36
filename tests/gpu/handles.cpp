// Every call that returns a handle which the program has made, or asked for before, returns that handle: textures and
// surfaces, levels of mipmapped arrays, functions found in two ways, nodes of graphs, streams, pools.
#include "tests/gpu/handles.h"

#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

using namespace gpupool::programs;

namespace {

CUDA_ARRAY3D_DESCRIPTOR square_of_bytes() {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    shape.Width = 64;
    shape.Height = 64;
    shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
    shape.NumChannels = 1;
    shape.Flags = CUDA_ARRAY3D_SURFACE_LDST;
    return shape;
}

CUDA_RESOURCE_DESC of_array(CUarray array) {
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    return resource;
}

void texture_of_array(CUarray array) {
    const CUDA_RESOURCE_DESC resource = of_array(array);
    CUDA_TEXTURE_DESC description{};
    description.flags = CU_TRSF_READ_AS_INTEGER;
    description.maxAnisotropy = 3;
    CUDA_RESOURCE_VIEW_DESC view{};
    view.format = CU_RES_VIEW_FORMAT_UINT_1X8;
    view.width = 64;
    view.height = 64;
    CUtexObject texture = 0;
    DRIVER_OK(cuTexObjectCreate(&texture, &resource, &description, &view));
    CUDA_RESOURCE_DESC resource_seen{};
    DRIVER_OK(cuTexObjectGetResourceDesc(&resource_seen, texture));
    check(resource_seen.resType == CU_RESOURCE_TYPE_ARRAY && resource_seen.res.array.hArray == array,
          "a texture's array");
    CUDA_TEXTURE_DESC description_seen{};
    DRIVER_OK(cuTexObjectGetTextureDesc(&description_seen, texture));
    check(description_seen.flags == description.flags && description_seen.maxAnisotropy == 3,
          "a texture's description: flags %u, anisotropy %u", description_seen.flags, description_seen.maxAnisotropy);
    CUDA_RESOURCE_VIEW_DESC view_seen{};
    DRIVER_OK(cuTexObjectGetResourceViewDesc(&view_seen, texture));
    check(view_seen.format == view.format && view_seen.width == 64 && view_seen.height == 64, "a texture's view");
    DRIVER_OK(cuTexObjectDestroy(texture));
    CUsurfObject surface = 0;
    DRIVER_OK(cuSurfObjectCreate(&surface, &resource));
    resource_seen = {};
    DRIVER_OK(cuSurfObjectGetResourceDesc(&resource_seen, surface));
    check(resource_seen.res.array.hArray == array, "a surface's array");
    DRIVER_OK(cuSurfObjectDestroy(surface));
}

void textures() {
    const CUDA_ARRAY3D_DESCRIPTOR shape = square_of_bytes();
    CUarray array = nullptr, level = nullptr;
    DRIVER_OK(cuArray3DCreate(&array, &shape));
    texture_of_array(array);
    DRIVER_OK(cuArrayDestroy(array));
    CUmipmappedArray levels = nullptr;
    DRIVER_OK(cuMipmappedArrayCreate(&levels, &shape, 3));
    DRIVER_OK(cuMipmappedArrayGetLevel(&level, levels, 0));
    texture_of_array(level);

    CUDA_RESOURCE_DESC resource{}, seen{};
    resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    resource.res.mipmap.hMipmappedArray = levels;
    CUDA_TEXTURE_DESC description{};
    description.flags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES;
    CUtexObject texture = 0;
    DRIVER_OK(cuTexObjectCreate(&texture, &resource, &description, nullptr));
    DRIVER_OK(cuTexObjectGetResourceDesc(&seen, texture));
    check(seen.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY && seen.res.mipmap.hMipmappedArray == levels,
          "a texture's mipmapped array");
    DRIVER_OK(cuTexObjectDestroy(texture));
    DRIVER_OK(cuMipmappedArrayDestroy(levels));

    CUdeviceptr memory = 0;
    DRIVER_OK(cuMemAlloc(&memory, 4096));
    resource = {};
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear = {memory, CU_AD_FORMAT_UNSIGNED_INT32, 1, 4096};
    description.flags = CU_TRSF_READ_AS_INTEGER;
    DRIVER_OK(cuTexObjectCreate(&texture, &resource, &description, nullptr));
    DRIVER_OK(cuTexObjectGetResourceDesc(&seen, texture));
    check(seen.res.linear.devPtr == memory && seen.res.linear.sizeInBytes == 4096, "a texture's memory");
    DRIVER_OK(cuTexObjectDestroy(texture));
    DRIVER_OK(cuMemFree(memory));
}

void levels_of_mipmapped_arrays() {
    const CUDA_ARRAY3D_DESCRIPTOR shape = square_of_bytes();
    for (int round = 0; round < 3; ++round) {
        CUmipmappedArray levels = nullptr;
        DRIVER_OK(cuMipmappedArrayCreate(&levels, &shape, 3));
        CUarray found[3] = {}, again = nullptr;
        for (unsigned i = 0; i < 3; ++i) {
            DRIVER_OK(cuMipmappedArrayGetLevel(&found[i], levels, i));
        }
        DRIVER_OK(cuMipmappedArrayGetLevel(&again, levels, 1));
        check(again == found[1] && found[0] != found[1] && found[1] != found[2], "a level has one handle");
        CUDA_ARRAY3D_DESCRIPTOR seen{};
        DRIVER_OK(cuArray3DGetDescriptor(&seen, found[2]));
        check(seen.Width == 16 && seen.Height == 16, "of the third level: %zu x %zu", seen.Width, seen.Height);
        check_result(cuMipmappedArrayGetLevel(&again, levels, 3), CUDA_ERROR_INVALID_VALUE, "a level too many");
        DRIVER_OK(cuMipmappedArrayDestroy(levels));
    }
}

void functions_of_modules() {
    const Module module(kernels_ptx().data);
    CUfunction first = module.function("store_word");
    check(module.function("store_word") == first, "a function found twice");
    unsigned count = 0;
    DRIVER_OK(cuModuleGetFunctionCount(&count, module.get()));
    std::vector<CUfunction> all(count);
    DRIVER_OK(cuModuleEnumerateFunctions(all.data(), count, module.get()));
    unsigned same = 0;
    for (CUfunction const one : all) {
        same += one == first ? 1 : 0;
    }
    check(same == 1, "it is one of the module's %u functions", count);
    CUmodule owner = nullptr;
    DRIVER_OK(cuFuncGetModule(&owner, first));
    check(owner == module.get(), "a function's module");
}

void functions_of_libraries() {
    CUlibrary library = nullptr, owner = nullptr;
    DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUkernel kernel = nullptr, again = nullptr;
    DRIVER_OK(cuLibraryGetKernel(&kernel, library, "store_word"));
    DRIVER_OK(cuLibraryGetKernel(&again, library, "store_word"));
    check(kernel == again, "a kernel found twice");
    DRIVER_OK(cuKernelGetLibrary(&owner, kernel));
    check(owner == library, "a kernel's library");
    unsigned count = 0;
    DRIVER_OK(cuLibraryGetKernelCount(&count, library));
    std::vector<CUkernel> all(count);
    DRIVER_OK(cuLibraryEnumerateKernels(all.data(), count, library));
    unsigned same = 0;
    for (CUkernel const one : all) {
        same += one == kernel ? 1 : 0;
    }
    check(same == 1, "it is one of the library's %u kernels", count);

    CUmodule module = nullptr, module_again = nullptr;
    DRIVER_OK(cuLibraryGetModule(&module, library));
    DRIVER_OK(cuLibraryGetModule(&module_again, library));
    check(module == module_again, "a library's module");
    CUfunction by_module = nullptr, by_kernel = nullptr, other = nullptr;
    DRIVER_OK(cuModuleGetFunction(&by_module, module, "store_word"));  // before the kernel's function
    DRIVER_OK(cuKernelGetFunction(&by_kernel, kernel));
    check(by_module == by_kernel, "the module's function is the kernel's");
    DRIVER_OK(cuLibraryGetKernel(&again, library, "add_value"));
    DRIVER_OK(cuKernelGetFunction(&by_kernel, again));  // before the module's
    DRIVER_OK(cuModuleGetFunction(&other, module, "add_value"));
    check(other == by_kernel, "the kernel's function is the module's");
    for (CUfunction const one : {by_module, other}) {
        DRIVER_OK(cuFuncGetModule(&module_again, one));
        check(module == module_again, "a library's function's module");
    }
    // Only launches, and questions about them, accept a kernel in place of a function.
    check_result(cuFuncGetModule(&module_again, reinterpret_cast<CUfunction>(kernel)), CUDA_ERROR_INVALID_HANDLE,
                 "the module of a kernel");
    check_result(cuKernelGetLibrary(&owner, reinterpret_cast<CUkernel>(by_module)), CUDA_ERROR_INVALID_HANDLE,
                 "the library of a function");
    check_result(cuModuleUnload(module), CUDA_ERROR_NOT_PERMITTED, "unloading a library's module");
    check_result(cuModuleGetFunction(&other, module, "no_such_function"), CUDA_ERROR_NOT_FOUND, "an unknown name");
    DRIVER_OK(cuLibraryUnload(library));
}

void libraries_in_two_contexts(const Device& device) {
    CUlibrary library = nullptr;
    DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUkernel kernel = nullptr;
    DRIVER_OK(cuLibraryGetKernel(&kernel, library, "store_word"));
    CUfunction functions[2] = {}, found = nullptr;
    CUmodule modules[2] = {}, owner = nullptr;
    DRIVER_OK(cuKernelGetFunction(&functions[0], kernel));
    CUcontext second = nullptr;
    DRIVER_OK(cuCtxCreate(&second, nullptr, 0, device.device()));
    DRIVER_OK(cuKernelGetFunction(&functions[1], kernel));
    check(functions[0] != functions[1], "a kernel's functions in two contexts differ");
    DRIVER_OK(cuFuncGetModule(&modules[0], functions[0]));
    DRIVER_OK(cuFuncGetModule(&modules[1], functions[1]));
    check(modules[0] != modules[1], "so do their modules");
    DRIVER_OK(cuLibraryGetModule(&owner, library));
    check(owner == modules[1], "the library's module is that of the current context");
    DRIVER_OK(cuModuleGetFunction(&found, modules[0], "store_word"));
    check(found == functions[0], "a function of the other context's module");
    DRIVER_OK(cuCtxDestroy(second));
    DRIVER_OK(cuLibraryGetModule(&owner, library));
    check(owner == modules[0], "back in the first context, its module");
    DRIVER_OK(cuLibraryUnload(library));
}

void streams_and_pools(const Device& device) {
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    for (CUstream const one : {stream, CUstream{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
        CUcontext context = nullptr;
        DRIVER_OK(cuStreamGetCtx(one, &context));
        check(context == device.context(), "a stream's context");
    }
    CUmemoryPool by_default = nullptr, own = nullptr, seen = nullptr;
    DRIVER_OK(cuDeviceGetDefaultMemPool(&by_default, device.device()));
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device.device();
    DRIVER_OK(cuMemPoolCreate(&own, &properties));
    const CUmemoryPool pools[] = {own, by_default};
    CUdeviceptr allocated[2] = {};
    for (int i = 0; i < 2; ++i) {
        DRIVER_OK(cuDeviceSetMemPool(device.device(), pools[i]));
        DRIVER_OK(cuDeviceGetMemPool(&seen, device.device()));
        check(seen == pools[i], "the device's pool");
        DRIVER_OK(cuMemAllocAsync(&allocated[i], 4096, stream));
    }
    for (int i = 0; i < 2; ++i) {
        DRIVER_OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, allocated[i]));
        check(seen == pools[i], "the pool of an allocation");
        DRIVER_OK(cuMemFreeAsync(allocated[i], stream));
    }
    DRIVER_OK(cuStreamSynchronize(stream));
    CUdeviceptr memory = 0;
    CUcontext context = nullptr;
    DRIVER_OK(cuMemAlloc(&memory, 4096));
    DRIVER_OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
    check(context == device.context(), "the context of an allocation");
    CUcontext retained = nullptr;
    DRIVER_OK(cuCtxGetCurrent(&context));
    DRIVER_OK(cuDevicePrimaryCtxRetain(&retained, device.device()));
    check(context == device.context() && retained == context, "the current and the primary context");
    DRIVER_OK(cuDevicePrimaryCtxRelease(device.device()));
    DRIVER_OK(cuMemFree(memory));
    CUmemLocation location = properties.location;
    DRIVER_OK(cuMemGetDefaultMemPool(&seen, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
    check(seen == by_default, "the default pool of a place");
    DRIVER_OK(cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, own));
    DRIVER_OK(cuMemGetMemPool(&seen, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
    check(seen == own, "the pool that was set for a place");
    DRIVER_OK(cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, by_default));
    DRIVER_OK(cuMemPoolDestroy(own));
    DRIVER_OK(cuStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
    Program program("handles", argc, argv);
    const Device device;
    program.section("textures", textures);
    program.section("levels", levels_of_mipmapped_arrays);
    program.section("modules", functions_of_modules);
    program.section("libraries", functions_of_libraries);
    program.section("contexts", [&] { libraries_in_two_contexts(device); });
    program.section("streams", [&] { streams_and_pools(device); });
    program.section("copy_nodes", [&] { copy_nodes(device); });
    program.section("kernel_nodes", [&] { kernel_nodes(device); });
    program.section("other_nodes", [&] { other_nodes(device); });
    program.section("captures", captures);
    return program.finish();
}
