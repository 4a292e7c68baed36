// Streams that wait for a kernel, however much work they have, do not block other streams. Streams A are filled behind
// a kernel that spins on a flag in device memory; then stream B works, and finally sets the flag. On GPUs where copies
// of several streams share one queue (as on an H200) B does not copy meanwhile. Setting: streams.
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

using namespace gpupool::programs;

namespace {

constexpr size_t kMiB = 1 << 20;

class Streams {
  public:
    Streams(const Device& device, const Module& module, unsigned count)
        : copies_overtake_(device.is_software()),
          spin_(module.function("spin")),
          add_(module.function("add_value")),
          waiting_(count) {
        for (CUstream& stream : waiting_) {
            DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        }
        DRIVER_OK(cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING));
        DRIVER_OK(cuMemAlloc(&words_, 3 * sizeof(unsigned)));
        DRIVER_OK(cuMemAlloc(&block_, (count + 1) * kAreaBytes));
        DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned_), (count + 1) * kAreaBytes));
        // Loads every kernel now: a first launch may wait for the device, which would deadlock the test itself.
        DRIVER_OK(cuMemsetD32(words_, 1, 3));
        DRIVER_OK(launch(spin_, 1, 1, waiting_[0], words_, words_ + 4, kSpinLimit));
        DRIVER_OK(launch(add_, 1, 1, other_, words_ + 8, 1u, 1u));
        DRIVER_OK(cuCtxSynchronize());
    }
    ~Streams() {
        cuMemFreeHost(pinned_);
        cuMemFree(block_);
        cuMemFree(words_);
        for (CUstream stream : waiting_) {
            cuStreamDestroy(stream);
        }
        cuStreamDestroy(other_);
    }
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;

    // Each stream has one area on the device and one of pinned memory; the other stream uses the first.
    static constexpr size_t kAreaBytes = 48 * kMiB;
    CUstream other() const { return other_; }
    CUdeviceptr block(size_t area) const { return block_ + area * kAreaBytes; }
    CUdeviceptr counter() const { return words_ + 8; }
    CUfunction add() const { return add_; }
    unsigned char* pinned(size_t area) const { return pinned_ + area * kAreaBytes; }

    // `fill` enqueues the work of each waiting stream; `work` is what the other stream does meanwhile.
    template <class Fill, class Work>
    void run(Fill fill, Work work) {
        DRIVER_OK(cuMemsetD32(words_, 0, 3));
        DRIVER_OK(cuCtxSynchronize());
        for (size_t i = 0; i < waiting_.size(); i++) {
            DRIVER_OK(launch(spin_, 1, 1, waiting_[i], words_, words_ + 4, kSpinLimit));
            fill(waiting_[i], i + 1);
        }
        // Time for everything issuable to be issued, which no call reports.
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        work();
        for (CUstream stream : waiting_) {
            check_result(cuStreamQuery(stream), CUDA_ERROR_NOT_READY, "a stream that waits");
        }
        if (copies_overtake_) {
            const unsigned one = 1;
            std::memcpy(pinned(0), &one, sizeof one);
            DRIVER_OK(cuMemcpyHtoDAsync(words_, pinned(0), sizeof one, other_));
        } else {
            DRIVER_OK(cuMemsetD32Async(words_, 1, 1, other_));
        }
        DRIVER_OK(cuStreamSynchronize(other_));
        for (CUstream stream : waiting_) {
            DRIVER_OK(cuStreamSynchronize(stream));
        }
        unsigned released = 0;
        DRIVER_OK(cuMemcpyDtoH(&released, words_ + 4, sizeof released));
        check(released == 1, "the kernels were released");
    }

    // Uploads and downloads of several sizes in the other stream.
    void copy_both_ways() {
        if (!copies_overtake_) {
            DRIVER_OK(launch(add_, 1, 1, other_, counter(), 1u, 1u));
            DRIVER_OK(cuStreamSynchronize(other_));
            return;
        }
        for (const size_t bytes : {size_t{4}, size_t{5000}, 60000 + kMiB, 8 * kMiB}) {
            unsigned char* const up = pinned(0);
            unsigned char* const down = up + kAreaBytes / 2;
            std::memset(up, static_cast<int>(bytes % 251 + 1), bytes);
            std::memset(down, 0, bytes);
            DRIVER_OK(cuMemcpyHtoDAsync(block(0), up, bytes, other_));
            DRIVER_OK(cuMemcpyDtoHAsync(down, block(0), bytes, other_));
            DRIVER_OK(cuStreamSynchronize(other_));
            check(std::memcmp(up, down, bytes) == 0, "%zu bytes to the device and back", bytes);
        }
    }

  private:
    const bool copies_overtake_;
    const CUfunction spin_;
    const CUfunction add_;
    std::vector<CUstream> waiting_;
    CUstream other_ = nullptr;
    CUdeviceptr words_ = 0, block_ = 0;
    unsigned char* pinned_ = nullptr;
};

void small_uploads(Streams& streams) {
    streams.run(
        [&](CUstream stream, size_t area) {
            for (unsigned i = 0; i < 400; i++) {
                DRIVER_OK(
                    cuMemcpyHtoDAsync(streams.block(area) + i * 64, streams.pinned(area), i < 200 ? 16 : 6000, stream));
            }
        },
        [&] { streams.copy_both_ways(); });
}

void large_uploads(Streams& streams) {
    streams.run(
        [&](CUstream stream, size_t area) {
            DRIVER_OK(cuMemcpyHtoDAsync(streams.block(area), streams.pinned(area), streams.kAreaBytes, stream));
        },
        [&] { streams.copy_both_ways(); });
}

void large_downloads(Streams& streams) {
    streams.run(
        [&](CUstream stream, size_t area) {
            DRIVER_OK(cuMemcpyDtoHAsync(streams.pinned(area), streams.block(area), streams.kAreaBytes, stream));
        },
        [&] { streams.copy_both_ways(); });
}

void all_at_once(Streams& streams) {
    unsigned turn = 0;
    streams.run(
        [&](CUstream stream, size_t area) {
            for (unsigned i = 0; i < 20; i++) {
                const size_t bytes = turn % 3 == 0 ? 3000 : turn % 3 == 1 ? 60000 : 20 * kMiB;
                if (turn % 2 == 0) {
                    DRIVER_OK(cuMemcpyHtoDAsync(streams.block(area), streams.pinned(area), bytes, stream));
                } else {
                    DRIVER_OK(cuMemcpyDtoHAsync(streams.pinned(area), streams.block(area), bytes, stream));
                }
                ++turn;
            }
        },
        [&] { streams.copy_both_ways(); });
}

// Unrelated events are created and destroyed meanwhile. An event whose record is issued late must be reported complete
// without further delay.
void events(Streams& streams) {
    streams.run(
        [&](CUstream stream, size_t) {
            for (unsigned i = 0; i < 600; i++) {
                DRIVER_OK(launch(streams.add(), 1, 1, stream, streams.counter(), 1u, 1u));
            }
        },
        [&] {
            for (unsigned i = 0; i < 2000; i++) {
                CUevent event = nullptr;
                DRIVER_OK(cuEventCreate(&event, i % 2 == 0 ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
                if (i % 64 == 0) {
                    DRIVER_OK(cuMemcpyHtoDAsync(streams.block(0), streams.pinned(0), 2 * kMiB, streams.other()));
                }
                DRIVER_OK(cuEventRecord(event, streams.other()));
                DRIVER_OK(cuStreamWaitEvent(streams.other(), event, 0));
                if (i % 64 == 0) {
                    DRIVER_OK(cuEventSynchronize(event));
                }
                DRIVER_OK(cuEventDestroy(event));
            }
            DRIVER_OK(cuStreamSynchronize(streams.other()));
        });
}

}  // namespace

int main(int argc, char** argv) {
    Program program("independent_streams", argc, argv);
    const Device device;
    const Module module(kernels_ptx().data);
    Streams streams(device, module, static_cast<unsigned>(program.number("streams", 6)));
    program.section("small_uploads", [&] { small_uploads(streams); });
    program.section("large_uploads", [&] { large_uploads(streams); });
    program.section("large_downloads", [&] { large_downloads(streams); });
    program.section("all_at_once", [&] { all_at_once(streams); });
    program.section("events", [&] { events(streams); });
    return program.finish();
}
