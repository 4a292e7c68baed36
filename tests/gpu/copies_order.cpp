// Copies to the device whose source is written by earlier work in stream order: a host function or a copy, in the same
// stream or in one that is waited for, alone or in a graph. The copies must read the written data.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/gpu/copies.h"
#include "tests/gpu/driver.h"

namespace gpupool::programs {
namespace {

constexpr size_t kMaxBytes = 200'003;

struct Fill {
    unsigned char* place;
    size_t bytes;
    unsigned char value;
    const std::atomic<bool>* go = nullptr;  // starts only when this is set
};

// Late, so that a copy that does not wait reads the old content. By the clock, because a driver may spin while it
// waits: the function cannot see that the caller waits.
void CUDA_CB fill_slowly(void* data) {
    const Fill& fill = *static_cast<const Fill*>(data);
    if (fill.go != nullptr) {
        fill.go->wait(false);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    memset(fill.place, fill.value, fill.bytes);
}

class Order {
  public:
    Order() : pageable_(kMaxBytes) {
        DRIVER_OK(cuStreamCreate(&first_, CU_STREAM_NON_BLOCKING));
        DRIVER_OK(cuStreamCreate(&second_, CU_STREAM_NON_BLOCKING));
        DRIVER_OK(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
        DRIVER_OK(cuMemAlloc(&from_, kMaxBytes));
        DRIVER_OK(cuMemAlloc(&to_, kMaxBytes));
        DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned_), kMaxBytes));
    }
    ~Order() {
        cuMemFreeHost(pinned_);
        cuMemFree(to_);
        cuMemFree(from_);
        cuEventDestroy(event_);
        cuStreamDestroy(second_);
        cuStreamDestroy(first_);
    }
    Order(const Order&) = delete;
    Order& operator=(const Order&) = delete;

    // `enqueue` enqueues the work that fills the source with the value, and the copy (or makes the copy); returns a
    // stream to wait for.
    template <class Enqueue>
    void expect(const char* what, size_t bytes, unsigned char* source, Enqueue enqueue) {
        value_++;
        memset(source, 0, bytes);
        DRIVER_OK(cuMemsetD8(to_, 0, bytes));
        DRIVER_OK(cuMemsetD8(from_, value_, bytes));
        DRIVER_OK(cuCtxSynchronize());
        Fill fill{source, bytes, value_};
        const CUstream stream = enqueue(fill);
        DRIVER_OK(cuStreamSynchronize(stream));
        DRIVER_OK(cuCtxSynchronize());
        std::vector<unsigned char> got(bytes);
        DRIVER_OK(cuMemcpyDtoH(got.data(), to_, bytes));
        check(got[0] == value_ && got[bytes - 1] == value_ && memcmp(&got[0], &got[1], bytes - 1) == 0,
              "%s, %zu bytes: %u, should be %u", what, bytes, got[0], value_);
    }

    void synchronous(size_t bytes) {
        for (unsigned char* const source : {pageable_.data(), pinned_}) {
            expect("a synchronous copy behind a host function", bytes, source, [&](Fill& fill) {
                DRIVER_OK(cuLaunchHostFunc(nullptr, fill_slowly, &fill));
                DRIVER_OK(cuMemcpyHtoD(to_, source, bytes));
                return CUstream{};
            });
        }
        unsigned char other = 0;
        expect("a synchronous copy behind one to its source", bytes, pinned_, [&](Fill&) {
            Fill elsewhere{&other, 1, 1};
            DRIVER_OK(cuLaunchHostFunc(nullptr, fill_slowly, &elsewhere));
            DRIVER_OK(cuMemcpyDtoHAsync(pinned_, from_, bytes, nullptr));
            DRIVER_OK(cuMemcpyHtoD(to_, pinned_, bytes));
            return CUstream{};
        });
        expect("a synchronous copy of rows behind one to the last of them", bytes, pinned_, [&](Fill&) {
            Fill elsewhere{&other, 1, 1};
            const size_t row = bytes / 2;
            memset(pinned_, value_, row);
            DRIVER_OK(cuLaunchHostFunc(nullptr, fill_slowly, &elsewhere));
            DRIVER_OK(cuMemcpyDtoHAsync(pinned_ + row, from_, bytes - row, nullptr));
            const CUDA_MEMCPY2D rows = two_rows(bytes);
            DRIVER_OK(cuMemcpy2D(&rows));
            if (bytes % 2 != 0) {
                DRIVER_OK(cuMemsetD8(to_ + 2 * row, value_, 1));
            }
            return CUstream{};
        });
    }

    CUDA_MEMCPY2D two_rows(size_t bytes) const {
        CUDA_MEMCPY2D rows{};
        rows.srcMemoryType = CU_MEMORYTYPE_HOST;
        rows.srcHost = pinned_;
        rows.srcPitch = rows.dstPitch = rows.WidthInBytes = bytes / 2;
        rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        rows.dstDevice = to_;
        rows.Height = 2;
        return rows;
    }

    void asynchronous(size_t bytes) {
        expect("a copy behind a host function", bytes, pinned_, [&](Fill& fill) {
            DRIVER_OK(cuLaunchHostFunc(first_, fill_slowly, &fill));
            DRIVER_OK(cuMemcpyHtoDAsync(to_, pinned_, bytes, first_));
            return first_;
        });
        expect("a copy of rows behind a host function that waits for the caller", bytes, pinned_, [&](Fill& fill) {
            std::atomic<bool> go{false};
            fill.go = &go;
            DRIVER_OK(cuLaunchHostFunc(first_, fill_slowly, &fill));
            const CUDA_MEMCPY2D rows = two_rows(bytes);
            DRIVER_OK(cuMemcpy2DAsync(&rows, first_));
            if (bytes % 2 != 0) {
                DRIVER_OK(cuMemsetD8Async(to_ + bytes - 1, value_, 1, first_));
            }
            go = true;
            go.notify_all();
            DRIVER_OK(cuStreamSynchronize(first_));
            return first_;
        });
        expect("a copy in the default stream under its other name", bytes, pinned_, [&](Fill& fill) {
            DRIVER_OK(cuLaunchHostFunc(CU_STREAM_LEGACY, fill_slowly, &fill));
            DRIVER_OK(cuMemcpyHtoDAsync(to_, pinned_, bytes, nullptr));
            return CUstream{};
        });
        expect("a copy behind another stream's host function", bytes, pinned_, [&](Fill& fill) {
            DRIVER_OK(cuLaunchHostFunc(first_, fill_slowly, &fill));
            DRIVER_OK(cuEventRecord(event_, first_));
            DRIVER_OK(cuStreamWaitEvent(second_, event_, 0));
            DRIVER_OK(cuMemcpyHtoDAsync(to_, pinned_, bytes, second_));
            return second_;
        });
        expect("a copy behind another stream's copy", bytes, pinned_, [&](Fill&) {
            unsigned char other = 0;
            Fill elsewhere{&other, 1, 1};
            DRIVER_OK(cuLaunchHostFunc(first_, fill_slowly, &elsewhere));
            DRIVER_OK(cuMemcpyDtoHAsync(pinned_, from_, bytes, first_));
            DRIVER_OK(cuEventRecord(event_, first_));
            DRIVER_OK(cuStreamWaitEvent(second_, event_, 0));
            DRIVER_OK(cuMemcpyHtoDAsync(to_, pinned_, bytes, second_));
            DRIVER_OK(cuStreamSynchronize(second_));
            return second_;
        });
    }

    // Graphs with nodes that run in the client. From here on the program has such a graph.
    void graphs(size_t bytes) {
        const auto behind = [&](const char* what, auto capture) {
            CUgraph graph = nullptr;
            CUgraphExec executable = nullptr;
            expect(what, bytes, pinned_, [&](Fill& fill) {
                DRIVER_OK(cuStreamBeginCapture(first_, CU_STREAM_CAPTURE_MODE_RELAXED));
                capture(fill);
                DRIVER_OK(cuStreamEndCapture(first_, &graph));
                DRIVER_OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
                DRIVER_OK(cuGraphLaunch(executable, first_));
                DRIVER_OK(cuMemcpyHtoDAsync(to_, pinned_, bytes, first_));
                DRIVER_OK(cuStreamSynchronize(first_));
                return first_;
            });
            DRIVER_OK(cuGraphExecDestroy(executable));
            DRIVER_OK(cuGraphDestroy(graph));
        };
        behind("a copy behind a graph's host function",
               [&](Fill& fill) { DRIVER_OK(cuLaunchHostFunc(first_, fill_slowly, &fill)); });
        behind("a copy behind a graph's copy",
               [&](Fill&) { DRIVER_OK(cuMemcpyDtoHAsync(pinned_, from_, bytes, first_)); });
    }

  private:
    CUstream first_ = nullptr, second_ = nullptr;
    CUevent event_ = nullptr;
    CUdeviceptr from_ = 0, to_ = 0;
    std::vector<unsigned char> pageable_;
    unsigned char* pinned_ = nullptr;
    unsigned char value_ = 0;
};

}  // namespace

void copy_in_order() {
    Order order;
    for (const size_t bytes : {size_t{4096}, kMaxBytes}) {
        order.synchronous(bytes);
        order.asynchronous(bytes);
    }
    for (const size_t bytes : {size_t{4096}, kMaxBytes}) {
        order.graphs(bytes);
    }
}

// More rows than any buffer should hold, in both directions, behind a host function that waits until the caller has
// enqueued all of them.
void rows_behind_their_caller() {
    constexpr size_t kWidth = 3'000, kPitch = 3'072, kHeight = 11'000, kTimes = 6;  // 33 MB each
    constexpr size_t kBytes = kPitch * kHeight;
    unsigned char *in = nullptr, *out = nullptr;
    CUdeviceptr device = 0;
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAlloc(&device, kWidth * kHeight));
    DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&in), kBytes));
    DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&out), kBytes));
    memset(in, 1, kBytes);
    memset(out, 2, kBytes);
    CUDA_MEMCPY2D to{}, from{};
    to.srcMemoryType = CU_MEMORYTYPE_HOST;
    to.srcHost = in;
    to.srcPitch = kPitch;
    to.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    to.dstDevice = device;
    to.dstPitch = kWidth;
    to.WidthInBytes = kWidth;
    to.Height = kHeight;
    from = to;
    from.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    from.srcDevice = device;
    from.srcPitch = kWidth;
    from.dstMemoryType = CU_MEMORYTYPE_HOST;
    from.dstHost = out;
    from.dstPitch = kPitch;
    std::atomic<bool> go{false};
    unsigned char unused = 0;
    Fill fill{&unused, 1, 1, &go};
    DRIVER_OK(cuLaunchHostFunc(stream, fill_slowly, &fill));
    for (size_t i = 0; i < kTimes; i++) {
        DRIVER_OK(cuMemcpy2DAsync(&to, stream));
        DRIVER_OK(cuMemcpy2DAsync(&from, stream));
    }
    for (size_t row = 0; row < kHeight; row++) {
        memset(in + row * kPitch, static_cast<int>(row % 251), kWidth);  // the rows are read only when the copy runs
    }
    go = true;
    go.notify_all();
    DRIVER_OK(cuStreamSynchronize(stream));
    size_t wrong = 0;
    for (size_t row = 0; row < kHeight; row++) {
        const unsigned char* const place = out + row * kPitch;
        for (size_t x = 0; x < kPitch; x++) {
            wrong += place[x] == (x < kWidth ? row % 251 : 2) ? 0 : 1;
        }
    }
    check(wrong == 0, "%zu copies of rows behind a host function that waits for their caller (%zu bytes wrong)",
          2 * kTimes, wrong);
    DRIVER_OK(cuMemFreeHost(in));
    DRIVER_OK(cuMemFreeHost(out));
    DRIVER_OK(cuMemFree(device));
    DRIVER_OK(cuStreamDestroy(stream));
}

}  // namespace gpupool::programs
