#include "tests/conformance/channel_fixture.h"

#include <algorithm>
#include <cstring>

namespace gpupool::testing {

std::vector<std::byte>& Recorder::expect_transfer(std::uint64_t transfer, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return transfers_[transfer] = std::vector<std::byte>(bytes);
}

void Recorder::hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
}

void Recorder::let_go() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
}

bool Recorder::wait_frames(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTimeout, [&] { return frames_.size() >= count; });
}

bool Recorder::wait_bulk_bytes(std::uint64_t bytes) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTimeout, [&] { return bulk_bytes_ >= bytes; });
}

bool Recorder::wait_closed(std::size_t times) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTimeout, [&] { return times_closed_ >= times; });
}

std::vector<Recorder::Frame> Recorder::frames() {
    const std::lock_guard lock(mutex_);
    return frames_;
}

std::vector<std::uint64_t> Recorder::words() {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint64_t> words;
    for (const auto& frame : frames_) {
        const std::size_t before = words.size();
        words.resize(before + frame.payload.size() / sizeof(std::uint64_t));
        std::memcpy(words.data() + before, frame.payload.data(), (words.size() - before) * sizeof(std::uint64_t));
    }
    return words;
}

std::size_t Recorder::payload_bytes() {
    const std::lock_guard lock(mutex_);
    std::size_t bytes = 0;
    for (const auto& frame : frames_) {
        bytes += frame.payload.size();
    }
    return bytes;
}

std::optional<Error> Recorder::cause() {
    const std::lock_guard lock(mutex_);
    return cause_;
}

std::size_t Recorder::times_closed() {
    const std::lock_guard lock(mutex_);
    return times_closed_;
}

std::span<std::byte> Recorder::bulk_destination(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = transfers_.find(transfer);
    if (found == transfers_.end()) {
        return {};
    }
    auto& memory = found->second;
    if (offset > memory.size() || bytes > memory.size() - offset) {
        return {};
    }
    return std::span(memory).subspan(static_cast<std::size_t>(offset), bytes);
}

void Recorder::on_bulk(std::uint64_t, std::uint64_t, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    bulk_bytes_ += bytes;
    changed_.notify_all();
}

void Recorder::on_frame(wire::FrameType type, std::unique_ptr<std::byte[]> payload, std::size_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !held_; });
    frames_.push_back({type, {payload.get(), payload.get() + bytes}});
    changed_.notify_all();
}

void Recorder::on_closed(const Error& cause) {
    if (when_closed) {
        when_closed(cause);
    }
    const std::lock_guard lock(mutex_);
    cause_ = cause;
    ++times_closed_;
    changed_.notify_all();
}

Status append_word(wire::Channel& channel, std::uint64_t word, wire::FrameType type) {
    return channel.append(type, sizeof(word), [&](std::byte* place) { std::memcpy(place, &word, sizeof(word)); });
}

Status append_record(wire::Channel& channel, std::span<const std::byte> record) {
    return channel.append(wire::FrameType::commands, record.size(),
                          [&](std::byte* place) { std::memcpy(place, record.data(), record.size()); });
}

bool readers_sleep(std::size_t channels) {
    return eventually([&] {
        const auto readers = test::threads_named("gpupool-read");
        return readers.size() >= channels && std::ranges::all_of(readers, [](pid_t reader) {
                   return test::state_of_thread(::getpid(), reader).state == 'S';
               });
    });
}

}  // namespace gpupool::testing
