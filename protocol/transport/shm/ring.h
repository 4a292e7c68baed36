// One direction of a shared memory connection: a ring of bytes between one writer and one reader, in memory that the
// other side may write to as it likes.
//
// Each side keeps its own copy of its own index and of the last index it saw of the other's, and checks every new one:
// never backwards, never further than the ring allows. Bytes are copied out before anybody looks at them, so what the
// other side scribbles meanwhile is only ever its own session's nonsense.
//
// Sleeping: whoever finds nothing to do says so in the control block, looks once more, and then waits for the doorbell,
// which is not the ring's. The other side publishes its index and then looks whether it has to ring. Both sides write
// one word and then read the other's: at least one of them must see the other, which only sequential consistency gives,
// so these four accesses have it. On x86-64 that is one locked instruction for every publish().
//
// Ownership: borrows the memory. Threads: a RingWriter is used by one thread at a time, a RingReader by one other; the
//   reader's readable_bytes(), prepare_to_sleep() and stay_awake() by any.
// Units: bytes; indices count what was ever written or read. Errors: `invalid_input` when the other side's index cannot
//   be true; the ring is of no further use then.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "protocol/transport/connection.h"

namespace gpupool::transport::shm {

// What both sides share of a ring beside its bytes. A line for each side, so that they do not fight for one.
struct RingControl {
    alignas(64) std::uint64_t written = 0;  // the writer's
    std::uint32_t reader_sleeps = 0;        // set by the reader, cleared by whoever wakes it
    alignas(64) std::uint64_t read = 0;     // the reader's
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
    // Goes on where the control block says that the last writer stopped.
    explicit RingWriter(RingMemory memory) noexcept;

    // Whether nothing was ever written, nor claimed to be read.
    [[nodiscard]] bool unused() const noexcept { return written_ == 0 && read_ == 0; }

    // Copies as much of `data` as there is room for, and says how much that was. The reader sees it with publish().
    Result<std::size_t> write(ConstBuffer data);

    // Is there room for so much? False where the reader's index is wrong, too, which write() says.
    [[nodiscard]] bool fits(std::size_t bytes) noexcept;

    // True when the reader sleeps and has to be woken.
    [[nodiscard]] bool publish() noexcept;

    [[nodiscard]] std::size_t unpublished_bytes() const noexcept { return unpublished_; }

    // There may be room, or the reader's index is wrong, which write() says.
    [[nodiscard]] bool may_write() const noexcept;
    // True when the reader will wake who sleeps now; false when there is something to do first.
    [[nodiscard]] bool prepare_to_sleep() noexcept;
    void stay_awake() noexcept;

  private:
    Status refresh();

    RingMemory memory_;
    std::uint64_t written_;
    std::uint64_t read_;  // the last index seen of the reader's
    std::size_t unpublished_ = 0;
};

class RingReader {
  public:
    // Goes on where the control block says that the last reader stopped.
    explicit RingReader(RingMemory memory) noexcept;

    // Whether nothing was ever read.
    [[nodiscard]] bool unused() const noexcept { return read_.load(std::memory_order_relaxed) == 0; }

    // Copies what has arrived, as much as fits; 0 when there is nothing.
    Result<std::size_t> read(MutableBuffer out);

    // Gives the room of what was read back. True when the writer sleeps and has to be woken, which it is only once a
    // good part of the ring is free: not for every few bytes.
    [[nodiscard]] bool release() noexcept;

    // As the writer says, and read() has yet to check.
    [[nodiscard]] std::size_t readable_bytes() const noexcept;
    [[nodiscard]] bool prepare_to_sleep() noexcept;
    void stay_awake() noexcept;

  private:
    Status refresh(std::uint64_t read);

    RingMemory memory_;
    std::atomic<std::uint64_t> read_;  // written by who reads
    std::uint64_t written_;            // the last index seen of the writer's
};

}  // namespace gpupool::transport::shm
