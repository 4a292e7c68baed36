// Thread A launches a kernel that spins on a flag in device memory and waits for its stream; thread B then sets the
// flag through another stream, and A must return. In some variants a third thread fills A's stream behind the spinning
// kernel with more launches than a stream can queue, so that it blocks, while B releases. Setting: queued.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"
#include "tests/support/waiting.h"

using namespace gpupool::programs;

namespace {

class Release {
  public:
    Release(const Device& device, const Module& module)
        : device_(device), spin_(module.function("spin")), add_(module.function("add_value")) {
        DRIVER_OK(cuStreamCreate(&waiting_, CU_STREAM_NON_BLOCKING));
        DRIVER_OK(cuStreamCreate(&releasing_, CU_STREAM_NON_BLOCKING));
        DRIVER_OK(cuMemAlloc(&words_, 3 * sizeof(unsigned)));
        DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned_), sizeof(unsigned)));
        *pinned_ = 1;
        // Loads every kernel now: a first launch may wait for the device, which would deadlock the test itself.
        DRIVER_OK(cuMemsetD32(words_, 1, 3));
        DRIVER_OK(launch(spin_, 1, 1, waiting_, flag(), outcome(), kSpinLimit));
        DRIVER_OK(launch(add_, 1, 1, waiting_, counter(), 1u, 1u));
        DRIVER_OK(cuCtxSynchronize());
    }
    ~Release() {
        cuMemFreeHost(pinned_);
        cuMemFree(words_);
        cuStreamDestroy(waiting_);
        cuStreamDestroy(releasing_);
    }
    Release(const Release&) = delete;
    Release& operator=(const Release&) = delete;

    CUdeviceptr flag() const { return words_; }
    CUdeviceptr outcome() const { return words_ + 4; }
    CUdeviceptr counter() const { return words_ + 8; }
    CUstream releasing() const { return releasing_; }
    const unsigned* pinned() const { return pinned_; }

    template <class SetFlag>
    void run(const char* how, unsigned queued, SetFlag set_flag) {
        DRIVER_OK(cuMemsetD32(words_, 0, 3));
        DRIVER_OK(cuCtxSynchronize());
        std::atomic<bool> launched{false};
        std::atomic<bool> came_back{false};
        std::atomic<unsigned> filled{0};
        std::thread waiter([&] {
            device_.use();
            DRIVER_OK(launch(spin_, 1, 1, waiting_, flag(), outcome(), kSpinLimit));
            launched.store(true);
            launched.notify_all();
            DRIVER_OK(cuStreamSynchronize(waiting_));
            came_back.store(true);
        });
        std::thread filler([&] {
            device_.use();
            launched.wait(false);
            for (unsigned i = 0; i < queued; i++) {
                DRIVER_OK(launch(add_, 1, 1, waiting_, counter(), 1u, 1u));
                filled.fetch_add(1);
            }
        });
        std::thread releaser([&] {
            device_.use();
            launched.wait(false);
            check(gpupool::test::eventually([&] { return filled_or_blocked(filled, queued); }), "%s: the queue is full",
                  how);
            check(!came_back.load(), "%s: the stream waits", how);
            DRIVER_OK(set_flag());
            DRIVER_OK(cuStreamSynchronize(releasing_));
        });
        releaser.join();
        filler.join();
        waiter.join();
        DRIVER_OK(cuStreamSynchronize(waiting_));
        unsigned seen[3] = {};
        DRIVER_OK(cuMemcpyDtoH(seen, words_, sizeof seen));
        check(seen[1] == 1, "%s: the kernel was released (outcome %u)", how, seen[1]);
        check(seen[2] == queued, "%s: %u of %u launches queued behind it ran", how, seen[2], queued);
    }

  private:
    // True when the filler has queued everything, or has made no progress for a while, which means that it is blocked:
    // a driver may spin meanwhile, so the thread's state does not show it.
    static bool filled_or_blocked(const std::atomic<unsigned>& filled, unsigned queued) {
        const unsigned before = filled.load();
        if (before == queued) {
            return true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return filled.load() == before && before > 0;
    }

    const Device& device_;
    const CUfunction spin_;
    const CUfunction add_;
    CUstream waiting_ = nullptr;
    CUstream releasing_ = nullptr;
    CUdeviceptr words_ = 0;
    unsigned* pinned_ = nullptr;
};

void run_variants(Program& program, Release& release, const Device& device, const std::string& suffix,
                  unsigned queued) {
    const unsigned one = 1;
    program.section("pageable_copy" + suffix, [&] {
        release.run("pageable copy", queued,
                    [&] { return cuMemcpyHtoDAsync(release.flag(), &one, sizeof one, release.releasing()); });
    });
    program.section("pinned_copy" + suffix, [&] {
        release.run("pinned copy", queued, [&] {
            return cuMemcpyHtoDAsync(release.flag(), release.pinned(), sizeof one, release.releasing());
        });
    });
    program.section("memset" + suffix, [&] {
        release.run("memset", queued, [&] { return cuMemsetD32Async(release.flag(), 1, 1, release.releasing()); });
    });
    program.section("stream_write" + suffix, [&] {
        if (device.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) == 0) {
            note("this device has no stream memory operations");
            return;
        }
        release.run("stream write", queued,
                    [&] { return cuStreamWriteValue32(release.releasing(), release.flag(), 1, 0); });
    });
}

}  // namespace

int main(int argc, char** argv) {
    Program program("release_by_other_thread", argc, argv);
    const Device device;
    const Module module(kernels_ptx().data);
    Release release(device, module);
    run_variants(program, release, device, "", 0);
    run_variants(program, release, device, "_full_stream", static_cast<unsigned>(program.number("queued", 1'500)));
    return program.finish();
}
