#include "client/core/tracing/server_trace.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "client/core/tracing/trace.h"
#include "common/log.h"
#include "protocol/calls/table.h"
#include "protocol/codec/cursor.h"

namespace gpupool::client {
namespace {

constexpr int kFirstExchanges = 8;
// No further exchange starts after this time, so that a slow network does not delay the program by all of them.
constexpr std::uint64_t kExchangeForNs = 50'000'000;

constexpr std::uint64_t kApartNs = 2;

// A kernel's name as in its source.
std::string readable(const std::string& name) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                           &std::free);
    return status == 0 && text != nullptr ? text.get() : name;
}

const char* gpu_work_name(codec::TraceKind kind) {
    switch (kind) {
        case codec::TraceKind::kernel: return "kernel";
        case codec::TraceKind::copy_in: return "copy to device";
        case codec::TraceKind::copy_out: return "copy from device";
        case codec::TraceKind::copy: return "copy";
        case codec::TraceKind::memset: return "memset";
        case codec::TraceKind::graph: return "graph";
        case codec::TraceKind::command:
        case codec::TraceKind::helper: break;
    }
    return "";
}

}  // namespace

void ClockMap::add(std::uint64_t before_ns, std::uint64_t theirs_ns, std::uint64_t after_ns) {
    const auto low = static_cast<std::int64_t>(theirs_ns - after_ns);
    const auto high = static_cast<std::int64_t>(theirs_ns - before_ns);
    const auto drift = static_cast<std::int64_t>(static_cast<double>(after_ns - added_ns_) * kDrift);
    const std::int64_t low_kept = low_ns_ - drift, high_kept = high_ns_ + drift;
    // If an exchange contradicts all earlier ones, a clock was set or its machine slept: start over with it.
    if (added_ns_ == 0 || low > high_kept || high < low_kept) {
        low_ns_ = low;
        high_ns_ = high;
    } else {
        low_ns_ = std::max(low, low_kept);
        high_ns_ = std::min(high, high_kept);
    }
    added_ns_ = after_ns;
    offset_ns_.store(low_ns_ + (high_ns_ - low_ns_) / 2, std::memory_order_relaxed);
}

std::uint64_t ClockMap::to_ours(std::uint64_t theirs_ns) const {
    return theirs_ns - static_cast<std::uint64_t>(offset_ns_.load(std::memory_order_relaxed));
}

std::uint64_t ClockMap::uncertainty_ns() const {
    return static_cast<std::uint64_t>(high_ns_ - low_ns_) / 2;
}

bool ServerTrace::start(const Calls& calls) {
    calls_ = calls;
    if (calls_.start() != CUDA_SUCCESS) {
        return false;
    }
    synchronize(kFirstExchanges);
    const Lock lock(clock_.adding);
    log::info("the server's clock is known to {} us", static_cast<double>(clock_.uncertainty_ns()) / 1000);
    return true;
}

void ServerTrace::synchronize(int exchanges) {
    const std::uint64_t give_up = trace::now_ns() + kExchangeForNs;
    for (int i = 0; i < exchanges && (i == 0 || trace::now_ns() < give_up); ++i) {
        std::uint64_t theirs = 0;
        const std::uint64_t before = trace::now_ns();
        if (calls_.clock(&theirs) != CUDA_SUCCESS) {
            return;
        }
        const Lock lock(clock_.adding);
        clock_.add(before, theirs, trace::now_ns());
    }
}

void ServerTrace::flush() {
    synchronize(1);
    (void)calls_.flush();
}

bool ServerTrace::take_records(std::span<std::byte> body) {
    codec::Reader in(body);
    const auto header = in.value<codec::TraceHeader>();
    if (!in.ok() || in.left() % sizeof(codec::TraceRecord) != 0 ||
        in.left() / sizeof(codec::TraceRecord) > codec::kMaxTraceRecords) {
        return false;
    }
    dropped_commands_ = header.dropped_commands;
    dropped_gpu_work_ = header.dropped_gpu_work;
    while (in.left() != 0) {
        const auto record = in.value<codec::TraceRecord>();
        if (record.kind < codec::TraceKind::command || record.kind > codec::TraceKind::graph) {
            return false;
        }
        draw(record);
    }
    return true;
}

bool ServerTrace::take_name(std::span<std::byte> body) {
    codec::Reader in(body);
    const auto header = in.value<codec::TraceName>();
    const std::byte* const text = header.bytes <= codec::kMaxTraceNameBytes ? in.take(header.bytes) : nullptr;
    if (text == nullptr || ++names_ > codec::kMaxTraceNames) {
        return false;
    }
    const std::string name(reinterpret_cast<const char*>(text), header.bytes);
    if (header.is_track != 0) {
        timeline_.name_track({Actor::gpu, header.id}, name);
    } else {
        kernels_[header.id] = Timeline::escape(readable(name));
    }
    return true;
}

void ServerTrace::draw(const codec::TraceRecord& record) {
    const bool on_gpu = record.kind >= codec::TraceKind::kernel;
    const bool on_helper = record.kind == codec::TraceKind::helper;
    const Track track{on_gpu ? Actor::gpu : Actor::worker, on_gpu || on_helper ? record.track : 1};
    std::uint64_t begin = clock_.to_ours(record.begin_ns);
    std::uint64_t end = begin + (record.end_ns > record.begin_ns ? record.end_ns - record.begin_ns : 0);
    // A better estimate of the server's clock must not make two slices of a track overlap, not even after a viewer has
    // converted their times to floating point.
    const std::uint64_t key = (static_cast<std::uint64_t>(track.actor) << 32) | track.number;
    const auto known = last_end_ns_.find(key);
    if (known != last_end_ns_.end()) {
        begin = std::max(begin, known->second + kApartNs);
        end = std::max(end, begin);
        known->second = end;
    } else if (last_end_ns_.size() < codec::kMaxTraceNames) {
        last_end_ns_[key] = end;
        if (on_helper) {
            timeline_.name_track(track, fmt::format("helper {}", record.track));
        }
    }
    std::string arguments = fmt::format("\"command\":{}", record.number);
    if (!on_gpu) {
        const std::string_view call = record.opcode == 0 && record.number == 0 ? std::string_view("the worker's own")
                                                                               : calls::name_of(record.opcode);
        const bool queued = (record.flags & codec::kTraceQueued) != 0;
        const bool was_queued = (record.flags & codec::kTraceWasQueued) != 0;
        arguments += fmt::format(",\"driver_us\":{:.3f},\"queued\":\"{}\",\"reply\":{}", record.driver_ns / 1000.0,
                                 queued       ? "now"
                                 : was_queued ? "until now"
                                              : "no",
                                 (record.flags & codec::kTraceAnswered) != 0);
        if (was_queued) {
            const auto reason = static_cast<codec::Reason>(record.flags >> codec::kTraceReasonShift);
            arguments += fmt::format(",\"waited_for\":\"{}\"", codec::name_of(reason));
        }
        timeline_.slice(track, on_helper ? "helper" : "dispatcher", Timeline::escape(call), begin, end, arguments);
    } else {
        const auto kernel = kernels_.find(record.name);
        if (record.bytes != 0) {
            arguments += fmt::format(",\"bytes\":{}", record.bytes);
        }
        arguments += fmt::format(",\"call\":\"{}\"", Timeline::escape(calls::name_of(record.opcode)));
        timeline_.slice(track, "gpu", kernel != kernels_.end() ? kernel->second : gpu_work_name(record.kind), begin,
                        end, arguments);
    }
    if (record.number != 0) {
        // A copy goes piece by piece from the dispatcher to the GPU and back, so its flow does not end here.
        const bool last =
            on_gpu && record.kind != codec::TraceKind::copy_in && record.kind != codec::TraceKind::copy_out;
        timeline_.flow(track, last ? Flow::ends : Flow::passes, begin, record.number);
    }
}

std::string ServerTrace::missing() const {
    const std::uint64_t commands = dropped_commands_, work = dropped_gpu_work_;
    if (commands == 0 && work == 0) {
        return {};
    }
    return fmt::format("; by the server {} records of commands and {} of GPU work", commands, work);
}

}  // namespace gpupool::client
