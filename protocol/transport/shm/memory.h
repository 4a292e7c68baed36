// Memory that two processes share: a sealed memfd and its mapping.
//
// What another process sends as such memory is checked before it is mapped: a memfd of ordinary pages, of exactly the
// size that was expected, that nobody can shrink any more (SIGBUS) nor make grow (somebody else's account).
//
// Ownership: owns descriptor and mapping. Threads: any may read and write the bytes; the rest is constant. Units:
// bytes. Errors: `invalid_input` for a descriptor that is no such memory, `system`.
#pragma once

#include <cstddef>
#include <span>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::transport::shm {

// Whether `descriptor` is such memory of exactly `bytes`.
Status check_memory(int descriptor, std::size_t bytes);

// Whether all of it is there already, on the account of whoever wrote to it: what is not there yet would be on the
// account of whoever reads it first.
bool is_populated(int descriptor, std::size_t bytes);

class SharedMemory {
  public:
    SharedMemory() = default;
    ~SharedMemory();
    SharedMemory(SharedMemory&& other) noexcept;
    SharedMemory& operator=(SharedMemory&& other) noexcept;
    SharedMemory(const SharedMemory&) = delete;

    // New memory, all zeros; `name` is what /proc shows.
    static Result<SharedMemory> make(const char* name, std::size_t bytes);

    // Somebody else's.
    static Result<SharedMemory> map(UniqueFd descriptor, std::size_t bytes);

    // New memory that nobody has mapped yet.
    static Result<UniqueFd> make_file(const char* name, std::size_t bytes);

    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
    [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

  private:
    UniqueFd descriptor_;
    std::span<std::byte> bytes_;
};

}  // namespace gpupool::transport::shm
