// Prints the runtime's properties of every device, and checks that they are consistent.
#include "tests/programs/runtime.h"

using namespace gpupool::programs;

int attribute(cudaDeviceAttr which, int device) {
    int value = -1;
    CUDA_OK(cudaDeviceGetAttribute(&value, which, device));
    return value;
}

void describe(int device) {
    cudaDeviceProp properties;
    CUDA_OK(cudaGetDeviceProperties(&properties, device));
    note("device %d: %s, compute capability %d.%d", device, properties.name, properties.major, properties.minor);
    note("  %d multiprocessors, %.1f GiB memory, %d KiB L2, PCI %04x:%02x:%02x", properties.multiProcessorCount,
         static_cast<double>(properties.totalGlobalMem) / (1 << 30), properties.l2CacheSize / 1024,
         properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
    note("  %zu bytes shared per block (%zu by request), %d registers per block", properties.sharedMemPerBlock,
         properties.sharedMemPerBlockOptin, properties.regsPerBlock);
    check(strlen(properties.name) > 0, "device %d has a name", device);
    check(properties.totalGlobalMem > 0 && properties.multiProcessorCount > 0, "and memory and multiprocessors");
    check(properties.warpSize == 32 && properties.maxThreadsPerBlock >= 512, "warps of 32, blocks of %d",
          properties.maxThreadsPerBlock);
    check(attribute(cudaDevAttrComputeCapabilityMajor, device) == properties.major &&
              attribute(cudaDevAttrComputeCapabilityMinor, device) == properties.minor &&
              attribute(cudaDevAttrMultiProcessorCount, device) == properties.multiProcessorCount &&
              attribute(cudaDevAttrMaxThreadsPerBlock, device) == properties.maxThreadsPerBlock &&
              attribute(cudaDevAttrMaxGridDimY, device) == properties.maxGridSize[1],
          "attributes and properties agree");
    char bus_id[32] = {};
    int same = -1;
    CUDA_OK(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device));
    CUDA_OK(cudaDeviceGetByPCIBusId(&same, bus_id));
    check(same == device, "PCI bus id %s is device %d", bus_id, same);
}

int main() {
    limit_seconds(120);
    int driver = 0, runtime = 0, count = 0;
    CUDA_OK(cudaDriverGetVersion(&driver));
    CUDA_OK(cudaRuntimeGetVersion(&runtime));
    note("driver %d.%d, runtime %d.%d", driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    CUDA_OK(cudaGetDeviceCount(&count));
    if (!check(count >= 1, "%d device(s)", count)) {
        return finish("device_query");
    }
    for (int device = 0; device < count; device++) {
        describe(device);
    }
    int current = -1;
    CUDA_OK(cudaGetDevice(&current));
    check(current == 0, "device 0 is current to begin with");
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    note("%zu MiB of %zu MiB free", free_bytes >> 20, total_bytes >> 20);
    check(free_bytes > 0 && free_bytes <= total_bytes, "free memory is a part of total memory");
    return finish("device_query");
}
