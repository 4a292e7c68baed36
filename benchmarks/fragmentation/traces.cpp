#include "benchmarks/fragmentation/traces.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>

namespace gpupool::fragmentation {
namespace {

constexpr std::uint64_t kKiB = 1u << 10, kMiB = 1u << 20, kGiB = 1u << 30;
constexpr std::size_t kPollInterval = 16;  // operations

}  // namespace

// Replays a trace on the memory and tracks live blocks.
class Replay {
  public:
    explicit Replay(Memory& memory) : memory_(memory) {}

    void allocate(std::uint64_t bytes) {
        blocks_.push_back({memory_.allocate(bytes), bytes});
        live_bytes_ += bytes;
        measure();
    }
    void free(std::size_t index) {
        memory_.free(blocks_[index].address);
        live_bytes_ -= blocks_[index].bytes;
        std::swap(blocks_[index], blocks_.back());
        blocks_.pop_back();
        measure();
    }
    void free_any() { free(random_() % blocks_.size()); }
    void free_all() {
        while (!blocks_.empty()) {
            free(blocks_.size() - 1);
        }
    }
    // Keeps one of each `count` blocks, in the order of their allocation, which no free() has changed.
    void keep_one_of(std::size_t count) {
        std::vector<Block> kept;
        for (std::size_t i = 0; i < blocks_.size(); ++i) {
            if (i % count == 0) {
                kept.push_back(blocks_[i]);
                continue;
            }
            memory_.free(blocks_[i].address);
            live_bytes_ -= blocks_[i].bytes;
        }
        blocks_ = std::move(kept);
        measure();
    }
    // Replaces blocks by others of random sizes, with as many between 2^n and 2^(n+1) for every n.
    void churn(std::uint64_t least, std::uint64_t most, std::uint64_t live_bytes, int steps) {
        std::uniform_real_distribution<double> exponent(std::log2(least), std::log2(most));
        for (int step = 0; step < steps; ++step) {
            const auto bytes = static_cast<std::uint64_t>(std::exp2(exponent(random_)));
            while (live_bytes_ + bytes > live_bytes) {
                free_any();
            }
            allocate(bytes);
        }
    }
    std::mt19937_64& random() { return random_; }
    [[nodiscard]] std::uint64_t live_bytes() const { return live_bytes_; }
    [[nodiscard]] const Usage& usage() const { return usage_; }

  private:
    struct Block {
        std::uint64_t address, bytes;
    };
    void measure() {
        if (++operations_ % kPollInterval != 0 || live_bytes_ == 0) {
            return;
        }
        const std::uint64_t taken = memory_.taken_bytes();
        usage_.most_live_bytes = std::max(usage_.most_live_bytes, live_bytes_);
        usage_.most_taken_bytes = std::max(usage_.most_taken_bytes, taken);
        usage_.live_bytes += static_cast<double>(live_bytes_);
        usage_.taken_bytes += static_cast<double>(taken);
    }

    Memory& memory_;
    std::vector<Block> blocks_;
    std::uint64_t live_bytes_ = 0;
    std::size_t operations_ = 0;
    std::mt19937_64 random_{20};
    Usage usage_;
};

std::vector<Trace> all_traces() {
    return {
        {"caching_allocator",
         "segments of 2, 20 and more MiB, as PyTorch's allocator asks for, given back now and then",
         [](Replay& replay) {
             for (int phase = 0; phase < 8; ++phase) {
                 while (replay.live_bytes() < 4 * kGiB) {
                     const auto kind = replay.random()() % 10;
                     replay.allocate(kind < 6   ? 2 * kMiB
                                     : kind < 9 ? 20 * kMiB
                                                : (replay.random()() % 128 + 6) * 2 * kMiB);
                 }
                 while (replay.live_bytes() > kGiB) {
                     replay.free_any();
                 }
             }
         }},
        {"layers", "a network's activations, allocated forwards and freed backwards, beside its weights",
         [](Replay& replay) {
             for (int layer = 0; layer < 200; ++layer) {
                 replay.allocate((replay.random()() % 4096 + 1) * kKiB);
             }
             for (int step = 0; step < 20; ++step) {
                 constexpr std::size_t kActivations = 400;
                 for (std::size_t i = 0; i < kActivations; ++i) {
                     replay.allocate((replay.random()() % 2048 + 1) * 512);
                 }
                 for (std::size_t i = 0; i < kActivations; ++i) {
                     replay.free(200 + kActivations - 1 - i);
                 }
             }
         }},
        {"churn_small", "512 bytes to 1 MiB, freed in any order, 256 MiB alive",
         [](Replay& replay) { replay.churn(512, kMiB, 256 * kMiB, 40'000); }},
        {"churn", "512 bytes to 64 MiB, freed in any order, 2 GiB alive",
         [](Replay& replay) { replay.churn(512, 64 * kMiB, 2 * kGiB, 20'000); }},
        {"growing_sizes", "sizes that double while smaller blocks are freed, 512 MiB alive",
         [](Replay& replay) {
             for (std::uint64_t bytes = 4 * kKiB; bytes <= 4 * kMiB; bytes *= 2) {
                 replay.churn(bytes, 2 * bytes, 512 * kMiB, static_cast<int>(kGiB / bytes / 4));
             }
         }},
        {"comb", "one of 32 blocks of 64 KiB stays, then blocks of 1 MiB; 256 MiB alive before and after",
         [](Replay& replay) {
             while (replay.live_bytes() < 256 * kMiB) {
                 replay.allocate(64 * kKiB);
             }
             replay.keep_one_of(32);
             while (replay.live_bytes() < 256 * kMiB) {
                 replay.allocate(kMiB);
             }
         }},
    };
}

Usage measure(const Trace& trace, Memory& memory) {
    Replay replay(memory);
    trace.run(replay);
    const Usage usage = replay.usage();
    replay.free_all();
    return usage;
}

}  // namespace gpupool::fragmentation
