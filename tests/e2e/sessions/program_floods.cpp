// Modes that queue much work behind work that waits, as much as a driver accepts. All of it must run once the wait is
// over, and nothing else may block meanwhile.
//   function_flood copy_flood synchronize_flood failed_download
//
// Modes that queue more than the worker or the driver accepts: the sending thread must block until the wait is over,
// and no other.
//   legacy_overflow own_overflow  a context's legacy stream, and a per-thread stream by a call of the per-thread form
//   streams_overflow              many streams, each with a short queue
//
// A mode that uses far more streams than a session may have at a time, one after the other:
//   stream_flood
//
// A mode that downloads for some seconds, faster than a slow network:
//   download_flood

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "tests/e2e/sessions/driver.h"
#include "tests/support/waiting.h"

namespace gpupool::session_program {
namespace {

// A driver blocks the caller at about a thousand queued operations; below that it must not.
constexpr unsigned kMany = 900;

std::atomic<unsigned> ran{0};

// Checks that work of another stream completes, then releases the waiting work. Returns the value that the work has
// written.
unsigned pass_and_release(CUstream other, CUdeviceptr data) {
    unsigned word = 0;
    must(driver.cuMemsetD32Async(data, 77, 1, other), "cuMemsetD32Async");
    must(driver.cuMemcpyDtoHAsync(&word, data, sizeof word, other), "cuMemcpyDtoHAsync");
    must(driver.cuStreamSynchronize(other), "cuStreamSynchronize");
    say("passed", word);
    release();
    return word;
}

// The same while `kMany` operations wait, all of which must run in the end.
int release_and_check(CUstream stream, CUstream other, CUdeviceptr data) {
    const unsigned word = pass_and_release(other, data);
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return word == 77 ? 0 : 10;
}

int failed_download(CUdeviceptr data, CUstream stream) {
    constexpr std::size_t kBytes = 4u << 20;
    void* host = nullptr;
    must(driver.cuMemHostAlloc(&host, kBytes, 0), "cuMemHostAlloc");
    // More than there is: the server refuses it, and one call must report the error.
    CUresult result = driver.cuMemcpyDtoHAsync(host, data, kBytes, stream);
    if (result == CUDA_SUCCESS) {
        result = driver.cuStreamSynchronize(stream);
    }
    if (result == CUDA_SUCCESS) {
        return 11;
    }
    // The buffer can be used for a copy in the other direction.
    must(driver.cuMemcpyHtoDAsync(data, host, 1u << 20, stream), "cuMemcpyHtoDAsync");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return 0;
}

constexpr std::size_t kCopyBytes = 64u << 10;  // what a command carries

// Copies consecutive numbers to one place, in a thread of its own.
class Sender {
  public:
    using Copy = decltype(&cuMemcpyHtoDAsync);
    Sender(CUcontext context, CUstream stream, Copy copy, unsigned copies, std::atomic<unsigned>& sent)
        : thread_([=, this, &sent] {
              use(context);
              must(driver.cuMemAlloc(&data_, kCopyBytes), "cuMemAlloc");
              block_until_release(stream == nullptr ? CU_STREAM_PER_THREAD : stream);
              std::vector<unsigned> words(kCopyBytes / sizeof(unsigned));
              for (unsigned i = 1; i <= copies; ++i, ++sent) {
                  words.front() = words.back() = i;
                  must(copy(data_, words.data(), kCopyBytes, stream), "cuMemcpyHtoDAsync");
              }
              must(driver.cuStreamSynchronize(stream == nullptr ? CU_STREAM_PER_THREAD : stream),
                   "cuStreamSynchronize");
              must(driver.cuMemcpyDtoH(words.data(), data_, kCopyBytes), "cuMemcpyDtoH");
              right_ = words.front() == copies && words.back() == copies;
          }) {}
    pid_t thread() const { return thread_.id(); }
    // True when the last copy's value is in place.
    bool join() {
        thread_.join();
        return right_;
    }

  private:
    CUdeviceptr data_ = 0;
    bool right_ = false;
    test::ObservedThread thread_;
};

int overflow(const std::string& mode, CUcontext context, CUstream other, CUdeviceptr data) {
    std::atomic<unsigned> sent{0};
    std::vector<std::unique_ptr<Sender>> senders;
    const bool many = mode == "streams_overflow";
    const unsigned copies = many ? 900 : 14'000;  // more than 800 MiB
    for (int i = 0; i < (many ? 15 : 1); ++i) {
        CUstream stream = mode == "legacy_overflow" ? CU_STREAM_LEGACY : nullptr;
        Sender::Copy copy = driver.cuMemcpyHtoDAsync;
        if (many) {
            must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        } else if (mode == "own_overflow") {
            copy = reinterpret_cast<Sender::Copy>(dlsym(driver.library, "cuMemcpyHtoDAsync_v2_ptsz"));
        }
        senders.push_back(std::make_unique<Sender>(context, stream, copy, copies, sent));
    }
    // Until they have sent all, which must not happen, or all of them are blocked.
    std::vector<pid_t> threads;
    must(test::eventually(
             [&] {
                 threads.clear();
                 for (const std::unique_ptr<Sender>& sender : senders) {
                     threads.push_back(sender->thread());
                 }
                 return sent == copies * senders.size() ||
                        (sent != 0 && test::are_blocked(::getpid(), threads, std::chrono::milliseconds(300)));
             },
             std::chrono::minutes(2))
             ? CUDA_SUCCESS
             : CUDA_ERROR_TIMEOUT,
         "throttling");
    say("sent", sent);
    const unsigned word = pass_and_release(other, data);
    for (const std::unique_ptr<Sender>& sender : senders) {
        if (!sender->join()) {
            return 15;
        }
    }
    return word == 77 ? 0 : 10;
}

// A new stream for each word that is written.
int stream_flood() {
    constexpr unsigned kStreams = 30'000;  // a session may have 16,384
    begin();
    CUdeviceptr data = 0;
    must(driver.cuMemAlloc(&data, kStreams * sizeof(unsigned)), "cuMemAlloc");
    for (unsigned i = 0; i < kStreams; ++i) {
        CUstream stream = nullptr;
        must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        must(driver.cuMemsetD32Async(data + i * sizeof(unsigned), i + 1, 1, stream), "cuMemsetD32Async");
        must(driver.cuStreamDestroy(stream), "cuStreamDestroy");
    }
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    std::vector<unsigned> words(kStreams);
    must(driver.cuMemcpyDtoH(words.data(), data, kStreams * sizeof(unsigned)), "cuMemcpyDtoH");
    for (unsigned i = 0; i < kStreams; ++i) {
        if (words[i] != i + 1) {
            return 16;
        }
    }
    return 0;
}

// Ends with most of it outstanding.
int download_flood() {
    static constexpr std::size_t kBytes = 64u << 10;
    const CUcontext context = begin();
    std::array<CUstream, 24> streams{};
    CUdeviceptr data = 0;
    void* host = nullptr;
    must(driver.cuMemAlloc(&data, kBytes), "cuMemAlloc");
    must(driver.cuMemHostAlloc(&host, kBytes, 0), "cuMemHostAlloc");
    for (CUstream& stream : streams) {
        must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    // In a thread of its own, which is throttled long before the end.
    static std::atomic<unsigned> copies{0};
    std::thread([context, data, host, streams] {
        use(context);
        while (true) {
            must(driver.cuMemcpyDtoHAsync(host, data, kBytes, streams[copies % streams.size()]), "cuMemcpyDtoHAsync");
            ++copies;
        }
    }).detach();
    // A fixed time, because the count never stops growing: the client accepts more as the slow network carries data.
    std::this_thread::sleep_for(std::chrono::seconds(12));
    say("copies", copies);
    std::fflush(stdout);
    std::_Exit(0);
}

}  // namespace

int run_flood(const std::string& mode) {
    if (mode.ends_with("_overflow")) {
        const CUcontext context = begin();
        CUstream other = nullptr;
        CUdeviceptr data = 0;
        must(driver.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        must(driver.cuMemAlloc(&data, sizeof(unsigned)), "cuMemAlloc");
        return overflow(mode, context, other, data);
    }
    if (mode == "stream_flood") {
        return stream_flood();
    }
    if (mode == "download_flood") {
        return download_flood();
    }
    if (mode != "function_flood" && mode != "copy_flood" && mode != "synchronize_flood" && mode != "failed_download") {
        return -1;
    }
    const CUcontext context = begin();
    CUstream stream = nullptr, other = nullptr;
    CUdeviceptr data = 0;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(driver.cuMemAlloc(&data, 2u << 20), "cuMemAlloc");
    if (mode == "failed_download") {
        CUdeviceptr large = 0;
        must(driver.cuMemAlloc(&large, 32u << 20), "cuMemAlloc");  // in a slab of its own, which is released with it
        return failed_download(large + (30u << 20), stream);
    }
    std::vector<unsigned> words(kMany);
    block_until_release(stream);
    if (mode == "function_flood") {
        for (unsigned i = 0; i < kMany; ++i) {
            must(driver.cuLaunchHostFunc(
                     stream, [](void*) { ++ran; }, nullptr),
                 "cuLaunchHostFunc");
        }
        const int verdict = release_and_check(stream, other, data);
        return verdict != 0 ? verdict : ran == kMany ? 0 : 12;
    }
    if (mode == "copy_flood") {
        for (unsigned i = 0; i < kMany; ++i) {
            words[i] = i + 1;
            must(driver.cuMemcpyHtoDAsync(data + 4096 + i * 4, &words[i], 4, stream), "cuMemcpyHtoDAsync");
        }
        if (const int verdict = release_and_check(stream, other, data); verdict != 0) {
            return verdict;
        }
        std::vector<unsigned> seen(kMany);
        must(driver.cuMemcpyDtoH(seen.data(), data + 4096, kMany * 4), "cuMemcpyDtoH");
        return seen == words ? 0 : 13;
    }
    std::vector<std::thread> waiting;
    for (unsigned i = 0; i < 600; ++i) {
        waiting.emplace_back([&] {
            use(context);
            must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
            ++ran;
        });
    }
    const int verdict = release_and_check(stream, other, data);
    for (std::thread& thread : waiting) {
        thread.join();
    }
    return verdict != 0 ? verdict : ran == 600 ? 0 : 14;
}

}  // namespace gpupool::session_program
