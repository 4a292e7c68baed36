// Memory that two processes share: a sealed memfd and its mapping.
//
// A descriptor from another process is checked before it is mapped: it must be a memfd of ordinary pages and of exactly
// the expected size, sealed so that no process can shrink it (which would cause SIGBUS) or grow it (at another
// process's expense).
//
// Ownership: owns descriptor and mapping. Threads: any may read and write the bytes; the rest is constant. Units:
// bytes. Errors: `invalid_input` if a descriptor is not such memory, `system`.
#pragma once

#include <cstddef>
#include <span>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::transport::shm {

// Fails unless `descriptor` is such memory of exactly `bytes`.
Status check_memory(int descriptor, std::size_t bytes);

// Whether all pages are allocated already, and so charged to the process that wrote them: a missing page would be
// charged to the process that reads it first.
bool is_populated(int descriptor, std::size_t bytes);

class SharedMemory {
  public:
    SharedMemory() = default;
    ~SharedMemory();
    SharedMemory(SharedMemory&& other) noexcept;
    SharedMemory& operator=(SharedMemory&& other) noexcept;
    SharedMemory(const SharedMemory&) = delete;

    // New zero-filled memory; `name` is shown in /proc.
    static Result<SharedMemory> make(const char* name, std::size_t bytes);

    // Maps memory that another process made.
    static Result<SharedMemory> map(UniqueFd descriptor, std::size_t bytes);

    // New memory, not mapped yet.
    static Result<UniqueFd> make_file(const char* name, std::size_t bytes);

    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
    [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

  private:
    UniqueFd descriptor_;
    std::span<std::byte> bytes_;
};

}  // namespace gpupool::transport::shm
