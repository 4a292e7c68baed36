// One direction of a shared memory connection: a ring of bytes between one writer and one reader, in memory to which
// the other side has unrestricted write access.
//
// Each side keeps its own copy of its own index and of the last index that it saw of the other side, and checks every
// new one: it must not move backwards, nor further than the ring allows. Bytes are copied out before they are
// interpreted, so a misbehaving peer harms only its own session.
//
// Sleeping: a side that finds nothing to do sets a flag in the control block, checks once more, and then sleeps until
// it receives a wake-up byte (on a socket, outside of the ring). The other side publishes its index and then checks
// whether it has to send one. Each side writes one word and then reads the other's; at least one of them must see the
// other's write. Only sequential consistency guarantees that, so these four accesses are sequentially consistent. On
// x86-64 that is one locked instruction per publish().
//
// Ownership: borrows the memory. Threads: a RingWriter is used by one thread at a time, a RingReader by one other
// thread at a time; the reader's readable_bytes(), prepare_to_sleep() and stay_awake() by any.
// Units: bytes; indices count all bytes ever written or read. Errors: `invalid_input` if the other side's index is
// invalid; the ring is of no further use then.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "protocol/transport/connection.h"

namespace gpupool::transport::shm {

// The shared state of a ring apart from its bytes. Each side has a cache line of its own, to avoid contention.
struct RingControl {
    alignas(64) std::uint64_t written = 0;  // advanced by the writer
    std::uint32_t reader_sleeps = 0;        // set by the reader, cleared by the thread that wakes it
    alignas(64) std::uint64_t read = 0;     // advanced by the reader
    std::uint32_t writer_sleeps = 0;
};
static_assert(sizeof(RingControl) == 128);

// The memory of one ring; `bytes.size()` is a power of two.
struct RingMemory {
    RingControl* control = nullptr;
    std::span<std::byte> bytes;
};

class RingWriter {
  public:
    // Continues where the previous writer stopped, according to the control block.
    explicit RingWriter(RingMemory memory) noexcept;

    // True if the indices show that nothing was written or read yet.
    [[nodiscard]] bool unused() const noexcept { return written_ == 0 && read_ == 0; }

    // Copies as much of `data` as there is room for, and returns that size. The reader sees it after publish().
    Result<std::size_t> write(ConstBuffer data);

    // Whether there is room for `bytes`. Also false if the reader's index is invalid, which write() reports.
    [[nodiscard]] bool fits(std::size_t bytes) noexcept;

    // True if the reader sleeps and must be woken.
    [[nodiscard]] bool publish() noexcept;

    [[nodiscard]] std::size_t unpublished_bytes() const noexcept { return unpublished_; }

    // Whether there may be room; also true if the reader's index is invalid, which write() reports.
    [[nodiscard]] bool may_write() const noexcept;
    // True if the caller may sleep, because the reader will wake it; false if there is room already.
    [[nodiscard]] bool prepare_to_sleep() noexcept;
    void stay_awake() noexcept;

  private:
    Status refresh();

    RingMemory memory_;
    std::uint64_t written_;
    std::uint64_t read_;  // the reader's index as last seen
    std::size_t unpublished_ = 0;
};

class RingReader {
  public:
    // Continues where the previous reader stopped, according to the control block.
    explicit RingReader(RingMemory memory) noexcept;

    // Whether nothing was ever read.
    [[nodiscard]] bool unused() const noexcept { return read_.load(std::memory_order_relaxed) == 0; }

    // Copies what has arrived, as much as fits; returns 0 if nothing has.
    Result<std::size_t> read(MutableBuffer out);

    // Returns the room of the bytes read to the writer. True if the writer sleeps and must be woken; it is woken only
    // when a quarter of the ring is free, not for every few bytes.
    [[nodiscard]] bool release() noexcept;

    // According to the writer's index, which only read() checks.
    [[nodiscard]] std::size_t readable_bytes() const noexcept;
    [[nodiscard]] bool prepare_to_sleep() noexcept;
    void stay_awake() noexcept;

  private:
    Status refresh(std::uint64_t read);

    RingMemory memory_;
    std::atomic<std::uint64_t> read_;  // written by the receiving thread
    std::uint64_t written_;            // the writer's index as last seen
};

}  // namespace gpupool::transport::shm
