#include "protocol/transport/shm/ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace gpupool::transport::shm {
namespace {

template <class T>
std::atomic_ref<T> shared(T& word) noexcept {
    static_assert(std::atomic_ref<T>::is_always_lock_free, "a lock would be one process's own");
    return std::atomic_ref<T>(word);
}

// Whether the other side announced that it sleeps. Clears the announcement: its caller must send the wake-up byte.
bool take(std::uint32_t& sleeps) noexcept {
    return shared(sleeps).load(std::memory_order_seq_cst) != 0 &&
           shared(sleeps).exchange(0, std::memory_order_relaxed) != 0;
}

Error impossible(const char* whose) {
    return {ErrorCode::invalid_input, std::string("the shared memory contains an invalid index of its ") + whose};
}

}  // namespace

RingWriter::RingWriter(RingMemory memory) noexcept
    : memory_(memory),
      written_(shared(memory.control->written).load(std::memory_order_relaxed)),
      read_(shared(memory.control->read).load(std::memory_order_acquire)) {}

Status RingWriter::refresh() {
    const std::uint64_t read = shared(memory_.control->read).load(std::memory_order_acquire);
    if (written_ - read_ > memory_.bytes.size() || read - read_ > written_ - read_) {
        return impossible("reader");
    }
    read_ = read;
    return {};
}

Result<std::size_t> RingWriter::write(ConstBuffer data) {
    const std::size_t capacity = memory_.bytes.size();
    if (data.size() > capacity - std::min<std::uint64_t>(written_ - read_, capacity)) {
        GPUPOOL_TRY(refresh());
    }
    const std::size_t total = std::min<std::size_t>(data.size(), capacity - (written_ - read_));
    for (std::size_t done = 0; done < total;) {  // at most two rounds: the ring may wrap around
        const std::size_t at = written_ & (capacity - 1);
        const std::size_t count = std::min(total - done, capacity - at);
        std::memcpy(memory_.bytes.data() + at, data.data() + done, count);
        written_ += count;
        done += count;
    }
    unpublished_ += total;
    return total;
}

bool RingWriter::fits(std::size_t bytes) noexcept {
    const auto room = [&] { return memory_.bytes.size() - (written_ - read_); };
    return bytes <= room() || (refresh().ok() && bytes <= room());
}

bool RingWriter::publish() noexcept {
    if (unpublished_ == 0) {
        return false;
    }
    unpublished_ = 0;
    shared(memory_.control->written).store(written_, std::memory_order_seq_cst);
    return take(memory_.control->reader_sleeps);
}

bool RingWriter::may_write() const noexcept {
    return written_ - shared(memory_.control->read).load(std::memory_order_acquire) != memory_.bytes.size();
}

bool RingWriter::prepare_to_sleep() noexcept {
    shared(memory_.control->writer_sleeps).store(1, std::memory_order_seq_cst);
    if (written_ - shared(memory_.control->read).load(std::memory_order_seq_cst) == memory_.bytes.size()) {
        return true;
    }
    stay_awake();
    return false;
}

void RingWriter::stay_awake() noexcept {
    shared(memory_.control->writer_sleeps).store(0, std::memory_order_relaxed);
}

RingReader::RingReader(RingMemory memory) noexcept
    : memory_(memory),
      read_(shared(memory.control->read).load(std::memory_order_relaxed)),
      written_(read_.load(std::memory_order_relaxed)) {}

Status RingReader::refresh(std::uint64_t read) {
    const std::uint64_t written = shared(memory_.control->written).load(std::memory_order_acquire);
    const std::uint64_t ahead = written - read;
    if (ahead > memory_.bytes.size() || ahead < written_ - read) {
        return impossible("writer");
    }
    written_ = written;
    return {};
}

Result<std::size_t> RingReader::read(MutableBuffer out) {
    const std::size_t capacity = memory_.bytes.size();
    std::uint64_t read = read_.load(std::memory_order_relaxed);
    if (written_ - read < out.size()) {
        GPUPOOL_TRY(refresh(read));
    }
    const std::size_t total = std::min<std::size_t>(out.size(), written_ - read);
    for (std::size_t done = 0; done < total;) {
        const std::size_t at = read & (capacity - 1);
        const std::size_t count = std::min(total - done, capacity - at);
        std::memcpy(out.data() + done, memory_.bytes.data() + at, count);
        read += count;
        done += count;
    }
    read_.store(read, std::memory_order_relaxed);
    return total;
}

bool RingReader::release() noexcept {
    const std::uint64_t read = read_.load(std::memory_order_relaxed);
    shared(memory_.control->read).store(read, std::memory_order_seq_cst);
    // A writer sleeps only if the ring was full, so at the latest the read that empties the ring gets here.
    return memory_.bytes.size() - (written_ - read) >= memory_.bytes.size() / 4 && take(memory_.control->writer_sleeps);
}

std::size_t RingReader::readable_bytes() const noexcept {
    return shared(memory_.control->written).load(std::memory_order_acquire) - read_.load(std::memory_order_relaxed);
}

bool RingReader::prepare_to_sleep() noexcept {
    shared(memory_.control->reader_sleeps).store(1, std::memory_order_seq_cst);
    if (shared(memory_.control->written).load(std::memory_order_seq_cst) == read_.load(std::memory_order_relaxed)) {
        return true;
    }
    stay_awake();
    return false;
}

void RingReader::stay_awake() noexcept {
    shared(memory_.control->reader_sleeps).store(0, std::memory_order_relaxed);
}

}  // namespace gpupool::transport::shm
