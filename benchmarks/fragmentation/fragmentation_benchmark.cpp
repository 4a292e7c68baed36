// How much GPU memory is taken for a program's allocations, by the client's device heap or by a driver.
//
//   gpupool_fragmentation_benchmark [--driver] [--json FILE]
//
// For the heap it counts the memory that the server would have committed; for a driver (--driver: the process's
// libcuda.so.1, which should be the real one) the decrease of cuMemGetInfo's free memory. Each trace (traces.cpp) gives
// two ratios: the maximum of taken memory to that of live memory, and the ratio of their means over the trace.
#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "benchmarks/fragmentation/traces.h"
#include "client/core/memory/device_heap.h"

namespace gpupool::fragmentation {
namespace {

void check(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) {
        throw std::runtime_error(fmt::format("{} gives error {}", what, static_cast<int>(result)));
    }
}

class HeapMemory final : public Memory {
  public:
    HeapMemory() { window_.keep({}, kBase, kWindowBytes); }
    std::uint64_t allocate(std::uint64_t bytes) override {
        std::uint64_t address = 0;
        check(heap_.allocate(bytes, address), "DeviceHeap::allocate");
        return address;
    }
    void free(std::uint64_t address) override { heap_.free(address); }
    std::uint64_t taken_bytes() override { return committed_bytes_; }

  private:
    // Addresses only; nothing is stored there.
    static constexpr std::uint64_t kBase = 0x600000000000, kWindowBytes = 1ull << 40;

    std::uint64_t committed_bytes_ = 0;
    client::AddressWindow window_;
    client::DeviceHeap heap_{window_,
                             {[this](std::uint64_t, std::uint64_t bytes) {
                                  committed_bytes_ += bytes;
                                  return CUDA_SUCCESS;
                              },
                              [this](std::uint64_t, std::uint64_t bytes) { committed_bytes_ -= bytes; },
                              [this](std::uint64_t address, std::uint64_t bytes) {
                                  committed_bytes_ += bytes;
                                  heap_.prepared(address, CUDA_SUCCESS);
                                  return CUDA_SUCCESS;
                              }}};
};

class DriverMemory final : public Memory {
  public:
    DriverMemory() {
        void* const library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) {
            throw std::runtime_error(dlerror());
        }
        const auto find = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
            if (function == nullptr) {
                throw std::runtime_error(dlerror());
            }
        };
        decltype(&::cuInit) init = nullptr;
        decltype(&::cuDevicePrimaryCtxRetain) retain = nullptr;
        decltype(&::cuCtxSetCurrent) set_current = nullptr;
        find(init, "cuInit");
        find(retain, "cuDevicePrimaryCtxRetain");
        find(set_current, "cuCtxSetCurrent");
        find(allocate_, "cuMemAlloc_v2");
        find(free_, "cuMemFree_v2");
        find(get_info_, "cuMemGetInfo_v2");
        CUcontext context = nullptr;
        check(init(0), "cuInit");
        check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
        check(set_current(context), "cuCtxSetCurrent");
        missing_before_ = missing_bytes();
    }
    std::uint64_t allocate(std::uint64_t bytes) override {
        CUdeviceptr address = 0;
        check(allocate_(&address, bytes), "cuMemAlloc");
        return address;
    }
    void free(std::uint64_t address) override { check(free_(address), "cuMemFree"); }
    std::uint64_t taken_bytes() override { return missing_bytes() - missing_before_; }

  private:
    std::uint64_t missing_bytes() {
        std::size_t free_bytes = 0, total_bytes = 0;
        check(get_info_(&free_bytes, &total_bytes), "cuMemGetInfo");
        return total_bytes - free_bytes;
    }

    decltype(&::cuMemAlloc_v2) allocate_ = nullptr;
    decltype(&::cuMemFree_v2) free_ = nullptr;
    decltype(&::cuMemGetInfo_v2) get_info_ = nullptr;
    std::uint64_t missing_before_ = 0;
};

int run(bool driver, const std::string& json_file) {
    nlohmann::ordered_json figures;
    fmt::print("{:<18} {:>11} {:>11} {:>8} {:>8}\n", "", "most alive", "most taken", "of peaks", "of means");
    for (const Trace& trace : all_traces()) {
        // A new one for each trace, because allocators keep memory.
        const auto memory =
            driver ? std::unique_ptr<Memory>(new DriverMemory) : std::unique_ptr<Memory>(new HeapMemory);
        const Usage usage = measure(trace, *memory);
        fmt::print("{:<18} {:>7} MiB {:>7} MiB {:>8.3f} {:>8.3f}   {}\n", trace.name, usage.most_live_bytes >> 20,
                   usage.most_taken_bytes >> 20, usage.peak(), usage.mean(), trace.what);
        figures[fmt::format("memory_taken/{}", trace.name)] = {usage.peak(), "x"};
    }
    if (!json_file.empty() && !(std::ofstream(json_file) << figures.dump(1))) {
        fmt::print(stderr, "{} cannot be written\n", json_file);
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace gpupool::fragmentation

int main(int count, char** words) {
    CLI::App app{"How much memory is taken for what a program has allocated."};
    bool driver = false;
    std::string json_file;
    app.add_flag("--driver", driver, "measure the driver instead of the client's heap");
    app.add_option("--json", json_file, "write the figures to this file");
    CLI11_PARSE(app, count, words);
    try {
        return gpupool::fragmentation::run(driver, json_file);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
