// How much of the program's code had to travel, for the summary of calls.
//
// Ownership: counters that live as long as the process. Threads: any. Errors: none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace gpupool::client {

class ImageCounts {
  public:
    // What the program has given to a load call: whole fat binaries, of which one image for the device is enough.
    void add_registered(std::size_t bytes) noexcept { registered_.add(bytes); }
    void add_sent(std::size_t bytes) noexcept { sent_.add(bytes); }
    // A part of it, as it went out: compressed or not.
    void add_on_wire(std::size_t bytes) noexcept { on_wire_.add(bytes); }
    // The server had it.
    void add_found(std::size_t bytes) noexcept { found_.add(bytes); }

    // A few lines of text.
    [[nodiscard]] std::string summary() const;

  private:
    struct Counter {
        std::atomic<std::uint64_t> count{0}, bytes{0};
        void add(std::size_t more) noexcept {
            count.fetch_add(1, std::memory_order_relaxed);
            bytes.fetch_add(more, std::memory_order_relaxed);
        }
    };
    Counter registered_, sent_, on_wire_, found_;
};

ImageCounts& image_counts() noexcept;

}  // namespace gpupool::client
