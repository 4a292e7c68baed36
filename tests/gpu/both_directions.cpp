// Two threads move bulk data at the same time, one to the device and one from it, each on its own stream. Both
// transfers must be complete and correct, repeatedly, with pageable and with pinned memory. Settings: mib (default 64),
// rounds.
#include <cstdint>
#include <thread>

#include "tests/gpu/driver.h"

using namespace gpupool::programs;

namespace {

// Words that depend on place, round and direction.
void fill(uint64_t* data, size_t words, uint64_t seed) {
    for (size_t i = 0; i < words; i++) {
        data[i] = (i + 1) * 0x9e3779b97f4a7c15u ^ seed;
    }
}

bool is_filled(const uint64_t* data, size_t words, uint64_t seed) {
    for (size_t i = 0; i < words; i++) {
        if (data[i] != ((i + 1) * 0x9e3779b97f4a7c15u ^ seed)) {
            return false;
        }
    }
    return true;
}

class HostBlock {
  public:
    HostBlock(size_t bytes, bool pinned) : pinned_(pinned) {
        if (pinned) {
            DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&data_), bytes));
        } else {
            data_ = static_cast<uint64_t*>(malloc(bytes));
        }
    }
    ~HostBlock() { pinned_ ? void(cuMemFreeHost(data_)) : free(data_); }
    HostBlock(const HostBlock&) = delete;
    HostBlock& operator=(const HostBlock&) = delete;
    uint64_t* get() const { return data_; }

  private:
    uint64_t* data_ = nullptr;
    bool pinned_;
};

void send(const Device& device, size_t bytes, bool pinned, int rounds, int* wrong) {
    device.use();
    const size_t words = bytes / sizeof(uint64_t);
    const HostBlock source(bytes, pinned), back(bytes, pinned);
    CUdeviceptr target = 0;
    CUstream stream = nullptr;
    DRIVER_OK(cuMemAlloc(&target, bytes));
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < rounds; round++) {
        fill(source.get(), words, round);
        DRIVER_OK(cuMemcpyHtoDAsync(target, source.get(), bytes, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
    }
    DRIVER_OK(cuMemcpyDtoH(back.get(), target, bytes));
    *wrong = !is_filled(back.get(), words, rounds - 1);
    DRIVER_OK(cuMemFree(target));
    DRIVER_OK(cuStreamDestroy(stream));
}

void receive(const Device& device, size_t bytes, bool pinned, int rounds, int* wrong) {
    device.use();
    const size_t words = bytes / sizeof(uint64_t);
    const HostBlock target(bytes, pinned);
    CUdeviceptr source = 0;
    CUstream stream = nullptr;
    DRIVER_OK(cuMemAlloc(&source, bytes));
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    fill(target.get(), words, 1000);
    DRIVER_OK(cuMemcpyHtoD(source, target.get(), bytes));
    DRIVER_OK(cuStreamSynchronize(nullptr));  // the copy may have returned before its data arrived
    for (int round = 0; round < rounds; round++) {
        memset(target.get(), 0, bytes);
        DRIVER_OK(cuMemcpyDtoHAsync(target.get(), source, bytes, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        *wrong += !is_filled(target.get(), words, 1000);
    }
    DRIVER_OK(cuMemFree(source));
    DRIVER_OK(cuStreamDestroy(stream));
}

void both(const Device& device, size_t bytes, bool pinned, int rounds) {
    int wrong_in = 0, wrong_out = 0;
    std::thread sender(send, std::cref(device), bytes, pinned, rounds, &wrong_in);
    std::thread receiver(receive, std::cref(device), bytes, pinned, rounds, &wrong_out);
    sender.join();
    receiver.join();
    const char* kind = pinned ? "pinned" : "pageable";
    check(wrong_in == 0, "%s: %d x %zu MiB to the device", kind, rounds, bytes >> 20);
    check(wrong_out == 0, "%s: %d x %zu MiB from the device", kind, rounds, bytes >> 20);
}

}  // namespace

int main(int argc, char** argv) {
    Program program("both_directions", argc, argv);
    const Device device;
    const size_t bytes = static_cast<size_t>(program.number("mib", 64)) << 20;
    const int rounds = static_cast<int>(program.number("rounds", 4));
    program.section("pageable", [&] { both(device, bytes, false, rounds); });
    program.section("pinned", [&] { both(device, bytes, true, rounds); });
    return program.finish();
}
