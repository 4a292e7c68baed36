// Which kernels may access which memory: another device's, without and with peer access, and mappings by their access
// rights. Each mistake runs in its own process, because it is fatal.
#include <vector>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

using namespace gpupool::programs;

namespace {

void in_child(const char* what, const std::function<void()>& work) {
    check(child_succeeds(work), "%s: as expected", what);
}

// The result of a kernel on device 0 that stores to, or loads from, the address.
CUresult store_to(CUdeviceptr address) {
    static const Module* const module = new Module(kernels_ptx().data);
    DRIVER_OK(launch(module->function("store_word"), 1, 1, nullptr, address, 4711u));
    return cuCtxSynchronize();
}

CUresult load_from(CUdeviceptr address) {
    static const Module* const module = new Module(kernels_ptx().data);
    CUdeviceptr own = 0;
    DRIVER_OK(cuMemAlloc(&own, sizeof(unsigned)));
    DRIVER_OK(launch(module->function("copy_words"), 1, 1, nullptr, address, own, 1u));
    return cuCtxSynchronize();
}

unsigned word_at(CUdeviceptr address) {
    unsigned value = 0;
    DRIVER_OK(cuMemcpyDtoH(&value, address, sizeof value));
    return value;
}

// Memory of device 1 and its context, while device 0's is current.
struct Peer {
    CUdeviceptr memory = 0;
    CUcontext context = nullptr;
    bool there = false;

    Peer() {
        static const Device device;
        int devices = 0, can = 0;
        DRIVER_OK(cuDeviceGetCount(&devices));
        if (devices > 1) {
            DRIVER_OK(cuDeviceCanAccessPeer(&can, 0, 1));
        }
        if (can == 0) {
            note("there is no second device that is a peer of the first");
            return;
        }
        there = true;
        DRIVER_OK(cuDevicePrimaryCtxRetain(&context, 1));
        DRIVER_OK(cuCtxSetCurrent(context));
        DRIVER_OK(cuMemAlloc(&memory, 4096));
        DRIVER_OK(cuMemsetD8(memory, 0, 4096));
        DRIVER_OK(cuCtxSynchronize());
        device.use();
    }
};

void peer_store() {
    in_child("a store to another device's memory", [] {
        const Peer peer;
        if (peer.there) {
            check_result(store_to(peer.memory), CUDA_ERROR_ILLEGAL_ADDRESS, "a store without peer access");
        }
    });
}

void peer_load() {
    in_child("a load from another device's memory", [] {
        const Peer peer;
        if (peer.there) {
            check_result(load_from(peer.memory), CUDA_ERROR_ILLEGAL_ADDRESS, "a load without peer access");
        }
    });
}

void peer_enabled() {
    in_child("peer access", [] {
        const Peer peer;
        if (peer.there) {
            DRIVER_OK(cuCtxEnablePeerAccess(peer.context, 0));
            check_result(store_to(peer.memory), CUDA_SUCCESS, "a store with peer access");
            check(word_at(peer.memory) == 4711, "it is seen: %u", word_at(peer.memory));
            check_result(load_from(peer.memory), CUDA_SUCCESS, "a load with peer access");
            DRIVER_OK(cuCtxDisablePeerAccess(peer.context));
            check_result(store_to(peer.memory), CUDA_ERROR_ILLEGAL_ADDRESS, "a store when it was taken back");
        }
    });
}

// A mapping of device 0's memory.
struct Mapped {
    CUdeviceptr address = 0;
    size_t bytes = 0;

    Mapped() {
        static const Device device;
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        DRIVER_OK(cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        CUmemGenericAllocationHandle memory = 0;
        DRIVER_OK(cuMemCreate(&memory, bytes, &properties, 0));
        DRIVER_OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
        DRIVER_OK(cuMemMap(address, bytes, 0, memory, 0));
    }
    void allow(CUmemAccess_flags flags, int device = 0) const {
        const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
        DRIVER_OK(cuMemSetAccess(address, bytes, &access, 1));
    }
    CUmemAccess_flags allowed(int device = 0) const {
        unsigned long long flags = 0;
        const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
        DRIVER_OK(cuMemGetAccess(&flags, &location, address));
        return static_cast<CUmemAccess_flags>(flags);
    }
};

void read_only_mapping() {
    in_child("a mapping for reading only", [] {
        const Mapped mapped;
        mapped.allow(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        check_result(store_to(mapped.address), CUDA_SUCCESS, "a store while that is allowed");
        mapped.allow(CU_MEM_ACCESS_FLAGS_PROT_READ);
        check(mapped.allowed() == CU_MEM_ACCESS_FLAGS_PROT_READ, "its access: %d", static_cast<int>(mapped.allowed()));
        check_result(load_from(mapped.address), CUDA_SUCCESS, "a load when reading is left");
        check_result(store_to(mapped.address), CUDA_ERROR_ILLEGAL_ADDRESS, "a store when reading is left");
    });
}

void mapping_of_another_device() {
    in_child("a mapping that another device may use", [] {
        const Peer peer;
        if (peer.there) {
            const Mapped mapped;
            mapped.allow(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
            mapped.allow(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1);
            mapped.allow(CU_MEM_ACCESS_FLAGS_PROT_NONE, 1);
            check_result(store_to(mapped.address), CUDA_SUCCESS, "its own device's store, whatever the other may");
            mapped.allow(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1);
            mapped.allow(CU_MEM_ACCESS_FLAGS_PROT_NONE);
            check_result(store_to(mapped.address), CUDA_ERROR_ILLEGAL_ADDRESS, "a store where only the other may");
        }
    });
}

}  // namespace

int main(int argc, char** argv) {
    Program program("memory_access", argc, argv);
    program.section("peer_store", peer_store);
    program.section("peer_load", peer_load);
    program.section("peer_enabled", peer_enabled);
    program.section("read_only_mapping", read_only_mapping);
    program.section("mapping_of_another_device", mapping_of_another_device);
    return program.finish();
}
