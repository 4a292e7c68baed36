// Counts how much of the program's code was sent, for the summary of calls.
//
// Ownership: counters that live as long as the process.
// Threads: any.
// Errors: none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace gpupool::client {

class ImageCounts {
  public:
    // The program has passed an image to a load call: a whole fat binary, of which one entry for the device suffices.
    void add_registered(std::size_t bytes) noexcept { registered_.add(bytes); }
    void add_sent(std::size_t bytes) noexcept { sent_.add(bytes); }
    // A part of an image was sent; `bytes` is its size on the wire, compressed or not.
    void add_on_wire(std::size_t bytes) noexcept { on_wire_.add(bytes); }
    // The server already had the image.
    void add_found(std::size_t bytes) noexcept { found_.add(bytes); }

    // Returns a few lines of text.
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
