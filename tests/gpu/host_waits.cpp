// Calls that are complete when they return, although work was queued before them: memsets and copies of host memory
// that the GPU can use, and calls for which the driver waits. What the GPU wrote to host memory is there then.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "tests/gpu/busy.h"
#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"
#include "tests/gpu/pinned.h"

using namespace gpupool::programs;

namespace {

class Registered {
  public:
    explicit Registered(size_t bytes) : bytes_(bytes) {
        memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        DRIVER_OK(cuMemHostRegister(memory_, bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
    }
    ~Registered() {
        DRIVER_OK(cuMemHostUnregister(memory_));
        munmap(memory_, bytes_);
    }
    Registered(const Registered&) = delete;
    Registered& operator=(const Registered&) = delete;
    [[nodiscard]] unsigned* get() const { return static_cast<unsigned*>(memory_); }
    [[nodiscard]] CUdeviceptr device() const {
        CUdeviceptr pointer = 0;
        DRIVER_OK(cuMemHostGetDevicePointer(&pointer, memory_, 0));
        return pointer;
    }

  private:
    size_t bytes_;
    void* memory_ = nullptr;
};

// The calls without Async, in both default streams: when they return, the work is done, also that before them.
void complete_on_return(const char* what, CUdeviceptr memory, const std::function<bool(unsigned char)>& holds) {
    Busy busy;
    unsigned char value = 0;
    const auto expect = [&](const char* form, CUstream stream, auto set) {
        value++;
        busy.start(stream);
        DRIVER_OK(set());
        const bool over = busy.over, there = holds(value);
        DRIVER_OK(cuStreamSynchronize(stream));
        check(over && there, "%s of %s, %s: complete on return (earlier work %d, its own %d)", form, what,
              stream == CU_STREAM_LEGACY ? "legacy stream" : "per-thread stream", over, there);
    };
    const auto word = [&] { return value * 0x01010101u; };
    const auto half = [&] { return static_cast<unsigned short>(word()); };
    for (const bool per_thread : {false, true}) {
        const auto pick = [=](auto* legacy, const char* name) {
            return per_thread ? per_thread_form<decltype(legacy)>(name) : legacy;
        };
        const CUstream stream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
        auto* const d8 = pick(&cuMemsetD8, "cuMemsetD8");
        auto* const d16 = pick(&cuMemsetD16, "cuMemsetD16");
        auto* const d32 = pick(&cuMemsetD32, "cuMemsetD32");
        auto* const d2d8 = pick(&cuMemsetD2D8, "cuMemsetD2D8");
        auto* const d2d16 = pick(&cuMemsetD2D16, "cuMemsetD2D16");
        auto* const d2d32 = pick(&cuMemsetD2D32, "cuMemsetD2D32");
        expect("cuMemsetD8", stream, [&] { return d8(memory, value, 1024); });
        expect("cuMemsetD16", stream, [&] { return d16(memory, half(), 512); });
        expect("cuMemsetD32", stream, [&] { return d32(memory, word(), 256); });
        expect("cuMemsetD2D8", stream, [&] { return d2d8(memory, 256, value, 256, 4); });
        expect("cuMemsetD2D16", stream, [&] { return d2d16(memory, 256, half(), 128, 4); });
        expect("cuMemsetD2D32", stream, [&] { return d2d32(memory, 256, word(), 64, 4); });
    }
}

void memsets() {
    const auto holds = [](const unsigned* words) {
        return [=](unsigned char value) {
            return std::all_of(words, words + 256, [=](unsigned word) { return word == value * 0x01010101u; });
        };
    };
    const Pinned mapped(1024), pinned(1024, 0);
    complete_on_return("mapped host memory", address_of(mapped.get()), holds(mapped.get()));
    complete_on_return("pinned host memory", address_of(pinned.get()), holds(pinned.get()));
    const Registered own(4096);
    complete_on_return("registered host memory", address_of(own.get()), holds(own.get()));

    CUdeviceptr block = 0, other = 0;
    DRIVER_OK(cuMemAlloc(&block, 4096));
    DRIVER_OK(cuMemAlloc(&other, 4096));
    const int on = 1;
    DRIVER_OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
    complete_on_return("memory with SYNC_MEMOPS", block, [](unsigned char) { return true; });
    Busy busy;
    const auto copied = [&](const char* what, auto copy) {
        busy.start(CU_STREAM_LEGACY);
        DRIVER_OK(copy());
        check(busy.over, "%s memory with SYNC_MEMOPS: complete on return", what);
        DRIVER_OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    };
    copied("a copy to", [&] { return cuMemcpyDtoD(block, other, 1024); });
    copied("a copy from", [&] { return cuMemcpyDtoD(other, block, 1024); });
    copied("a copy from the host to", [&] { return cuMemcpyHtoD(block, mapped.get(), 1024); });
    DRIVER_OK(cuMemFree(block));
    DRIVER_OK(cuMemFree(other));
}

// Copies between all kinds of host memory, by every call that takes them, in a stream that is busy.
void copies() {
    constexpr size_t kBytes = 2048;
    const Pinned one(1024), other(1024, 0);
    const Registered own(4096), asked(4096);
    (void)asked.device();
    std::vector<unsigned> pageable(1024);
    struct Memory {
        const char* what;
        unsigned* words;
        bool known;
    };
    const std::array<Memory, 5> all = {Memory{"mapped", one.get(), true}, Memory{"pinned", other.get(), true},
                                       Memory{"registered", own.get(), true}, Memory{"asked for", asked.get(), true},
                                       Memory{"pageable", pageable.data(), false}};
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    Busy busy;
    unsigned value = 0;
    for (const Memory& to : all) {
        for (const Memory& from : all) {
            if (to.words == from.words) {
                continue;
            }
            const CUdeviceptr dst = address_of(to.words), src = address_of(from.words);
            const auto expect = [&](const char* call, CUstream busy_stream, auto copy) {
                value++;
                std::fill_n(from.words, kBytes / sizeof value, value);
                busy.start(busy_stream);
                DRIVER_OK(copy());
                const bool over = busy.over;
                const bool there = std::all_of(to.words, to.words + kBytes / sizeof value,
                                               [=](unsigned word) { return word == value; });
                DRIVER_OK(cuStreamSynchronize(busy_stream));
                check(over && there, "%s, %s to %s: complete on return (earlier work %d, its own %d)", call, from.what,
                      to.what, over, there);
            };
            CUDA_MEMCPY2D rows{};
            rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
            rows.srcDevice = src;
            rows.dstDevice = dst;
            rows.WidthInBytes = rows.srcPitch = rows.dstPitch = 256;
            rows.Height = kBytes / 256;
            expect("cuMemcpy", CU_STREAM_LEGACY, [&] { return cuMemcpy(dst, src, kBytes); });
            expect("cuMemcpyAsync", stream, [&] { return cuMemcpyAsync(dst, src, kBytes, stream); });
            expect("cuMemcpy2DAsync", stream, [&] { return cuMemcpy2DAsync(&rows, stream); });
            if (to.known && from.known) {
                expect("cuMemcpyDtoDAsync", stream, [&] { return cuMemcpyDtoDAsync(dst, src, kBytes, stream); });
            }
            if (to.known) {
                expect("cuMemcpyHtoDAsync", stream, [&] { return cuMemcpyHtoDAsync(dst, from.words, kBytes, stream); });
            }
            if (from.known) {
                expect("cuMemcpyDtoHAsync", stream, [&] { return cuMemcpyDtoHAsync(to.words, src, kBytes, stream); });
            }
        }
    }
    DRIVER_OK(cuStreamDestroy(stream));
}

// Calls for which the driver waits until the context is idle, whatever stream the work is in.
void other_calls() {
    const Module module(kernels_ptx().data);
    const CUfunction add = module.function("add_value");
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const Pinned mapped(1024);
    const Registered own(4096);
    const CUdeviceptr own_device = own.device();
    Busy busy;
    const auto expect = [&](const char* call, const auto& prepare, const auto& make) {
        for (const bool registered : {false, true}) {
            volatile unsigned* const words = registered ? own.get() : mapped.get();
            auto object = prepare();
            DRIVER_OK(cuCtxSynchronize());
            const unsigned before = words[0];
            busy.start(stream);
            DRIVER_OK(launch(add, 1, 1, stream, registered ? own_device : address_of(mapped.get()), 1u, 3u));
            DRIVER_OK(make(object));
            const bool over = busy.over;
            const unsigned after = words[0];
            DRIVER_OK(cuCtxSynchronize());
            check(over && after == before + 3, "%s, %s memory: earlier work is complete (%d) and seen (%u after %u)",
                  call, registered ? "registered" : "mapped", over, after, before);
        }
    };
    const auto load = [] {
        CUmodule loaded = nullptr;
        DRIVER_OK(cuModuleLoadData(&loaded, kernels_ptx().data));
        return loaded;
    };
    expect(
        "cuMemFree",
        [] {
            CUdeviceptr memory = 0;
            DRIVER_OK(cuMemAlloc(&memory, 4096));
            return memory;
        },
        [](CUdeviceptr memory) { return cuMemFree(memory); });
    expect(
        "cuMemFreeHost of other memory",
        [] {
            void* memory = nullptr;
            DRIVER_OK(cuMemHostAlloc(&memory, 4096, 0));
            return memory;
        },
        [](void* memory) { return cuMemFreeHost(memory); });
    expect("cuModuleUnload", load, [](CUmodule loaded) { return cuModuleUnload(loaded); });
    expect(
        "cuModuleLoadData", [] { return CUmodule{}; },
        [](CUmodule& loaded) { return cuModuleLoadData(&loaded, kernels_ptx().data); });
    expect(
        "cuArrayDestroy",
        [] {
            CUarray array = nullptr;
            const CUDA_ARRAY_DESCRIPTOR size = {64, 64, CU_AD_FORMAT_UNSIGNED_INT8, 1};
            DRIVER_OK(cuArrayCreate(&array, &size));
            return array;
        },
        [](CUarray array) { return cuArrayDestroy(array); });
    size_t stack = 4096;
    expect(
        "cuCtxSetLimit of the stack", [&] { return stack += 1024; },
        [](size_t bytes) { return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes); });
    DRIVER_OK(cuStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
    Program program("host_waits", argc, argv);
    const Device device;
    program.section("memsets", [] { memsets(); });
    program.section("copies", [] { copies(); });
    program.section("other_calls", [] { other_calls(); });
    return program.finish();
}
