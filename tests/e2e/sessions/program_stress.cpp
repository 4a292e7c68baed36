// Many kinds of calls from several threads at once, while a waiting stream has much work queued. Each thread's stream
// computes a value that shows that no operation was lost, duplicated or reordered.
//   stress
//   queued   queues launches behind a stream that waits, prints "ready", and lets the stream go when its stdin ends

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/e2e/sessions/driver.h"

namespace gpupool::session_program {
namespace {

constexpr std::size_t kThreads = 4;
constexpr unsigned kRounds = 40;
constexpr unsigned kHeld = 900;                     // waiting launches, fewer than a driver queues without blocking
constexpr std::array kSizesWords = {64u, 40'000u};  // a size that a command carries, and one that it does not

using Events = std::array<CUevent, kThreads>;

// One thread's stream, and the value that all of its words must have.
class Chain {
  public:
    Chain(CUcontext context, CUfunction function, const Events& events, std::size_t number)
        : context_(context),
          function_(function),
          events_(events),
          number_(number),
          words_(kSizesWords[number % kSizesWords.size()]) {}

    bool run() {
        use(context_);
        must(driver.cuStreamCreate(&stream_, number_ == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING),
             "cuStreamCreate");
        must(driver.cuMemAlloc(&data_, bytes()), "cuMemAlloc");
        must(driver.cuMemHostAlloc(&pinned_, bytes(), 0), "cuMemHostAlloc");
        must(driver.cuMemsetD32Async(data_, 0, words_, stream_), "cuMemsetD32Async");
        bool right = true;
        for (unsigned round = 0; round < kRounds && right; ++round) {
            right = step();
        }
        return right && check();
    }

  private:
    [[nodiscard]] std::size_t bytes() const { return words_ * sizeof(unsigned); }

    bool step() {
        switch (random_() % 6) {
            case 0: launch_many(); return true;
            case 1: set(); return true;
            case 2: send_pageable(); return true;
            case 3: send_pinned(); return true;
            case 4: use_stream_memory(); return true;
            default: meet_others(); return check();
        }
    }

    void launch_many() {
        const unsigned count = 1 + random_() % 60;
        for (unsigned i = 1; i <= count; ++i) {
            add(function_, data_, words_, i, stream_);
            expected_ += i;
        }
    }

    void set() {
        expected_ = random_();
        must(driver.cuMemsetD32Async(data_, expected_, words_, stream_), "cuMemsetD32Async");
    }

    // The source may be overwritten when the call returns.
    void send_pageable() {
        expected_ = random_();
        std::vector<unsigned> words(words_, expected_);
        must(driver.cuMemcpyHtoDAsync(data_, words.data(), bytes(), stream_), "cuMemcpyHtoDAsync");
        std::fill(words.begin(), words.end(), ~expected_);
    }

    void send_pinned() {
        must(driver.cuStreamSynchronize(stream_), "cuStreamSynchronize");
        expected_ = random_();
        std::fill_n(static_cast<unsigned*>(pinned_), words_, expected_);
        must(driver.cuMemcpyHtoDAsync(data_, pinned_, bytes(), stream_), "cuMemcpyHtoDAsync");
    }

    // Frees memory behind work that still reads it.
    void use_stream_memory() {
        CUdeviceptr other = 0;
        must(driver.cuMemAllocAsync(&other, bytes(), stream_), "cuMemAllocAsync");
        expected_ = random_();
        must(driver.cuMemsetD32Async(other, expected_, words_, stream_), "cuMemsetD32Async");
        must(driver.cuMemcpyDtoDAsync(data_, other, bytes(), stream_), "cuMemcpyDtoDAsync");
        must(driver.cuMemFreeAsync(other, stream_), "cuMemFreeAsync");
    }

    void meet_others() {
        must(driver.cuEventRecord(events_[number_], stream_), "cuEventRecord");
        must(driver.cuStreamWaitEvent(stream_, events_[(number_ + 1) % kThreads], 0), "cuStreamWaitEvent");
    }

    bool check() {
        std::vector<unsigned> words(words_, ~expected_);
        must(driver.cuMemcpyDtoHAsync(words.data(), data_, bytes(), stream_), "cuMemcpyDtoHAsync");
        must(driver.cuStreamSynchronize(stream_), "cuStreamSynchronize");
        const bool right = std::ranges::all_of(words, [&](unsigned word) { return word == expected_; });
        if (!right) {
            say("wrong:" + std::to_string(words.front()) + ":expected", expected_);
        }
        return right;
    }

    const CUcontext context_;
    const CUfunction function_;
    const Events& events_;
    const std::size_t number_;
    const unsigned words_;
    std::minstd_rand random_{static_cast<unsigned>(number_ + 1)};
    CUstream stream_ = nullptr;
    CUdeviceptr data_ = 0;
    void* pinned_ = nullptr;
    unsigned expected_ = 0;
};

// Launches behind a stream that waits: each adds 1.
class Backlog {
  public:
    explicit Backlog(CUfunction add_value) {
        must(driver.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        must(driver.cuMemAlloc(&sum_, sizeof(unsigned)), "cuMemAlloc");
        must(driver.cuMemsetD32Async(sum_, 0, 1, stream_), "cuMemsetD32Async");
        block_until_release(stream_);
        for (unsigned i = 0; i < kHeld; ++i) {
            add(add_value, sum_, 1, 1, stream_);
        }
    }
    // Lets them run; returns their sum.
    unsigned release_and_read() {
        unsigned result = 0;
        release();
        must(driver.cuMemcpyDtoHAsync(&result, sum_, sizeof result, stream_), "cuMemcpyDtoHAsync");
        must(driver.cuStreamSynchronize(stream_), "cuStreamSynchronize");
        return result;
    }

  private:
    CUstream stream_ = nullptr;
    CUdeviceptr sum_ = 0;
};

int stress() {
    const CUcontext context = begin();
    const CUfunction function = kernel("add_value");
    Events events{};
    for (CUevent& event : events) {
        must(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    }
    Backlog backlog(function);
    std::atomic<unsigned> right{0};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] { right += Chain(context, function, events, i).run() ? 1 : 0; });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    say("passed", right);
    const unsigned result = backlog.release_and_read();
    say("held", result);
    return right == kThreads && result == kHeld ? 0 : 10;
}

int queued() {
    begin();
    Backlog backlog(kernel("add_value"));
    say("ready", 1);
    await_end_of_input();
    return backlog.release_and_read() == kHeld ? 0 : 10;
}

}  // namespace

int run_stress(const std::string& mode) {
    return mode == "stress" ? stress() : mode == "queued" ? queued() : -1;
}

}  // namespace gpupool::session_program
