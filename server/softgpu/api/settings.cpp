#include "server/softgpu/api/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

namespace gpupool::softgpu {
namespace {

constexpr int kMaxDevices = 64, kMaxProcessors = 512;
constexpr std::uint64_t kMaxTime = 24ULL * 3600 * 1000 * 1000;

// Parses "512MiB", "4G" or "1073741824"; 0 for anything else.
std::uint64_t parse_bytes(const char* text) {
    char* end = nullptr;
    const unsigned long long value = std::strtoull(text, &end, 10);
    if (end == text) {
        return 0;
    }
    int shift = 0;
    switch (*end) {
        case 'k':
        case 'K': shift = 10; break;
        case 'm':
        case 'M': shift = 20; break;
        case 'g':
        case 'G': shift = 30; break;
        case 't':
        case 'T': shift = 40; break;
        case '\0': break;
        default: return 0;
    }
    const std::string_view unit = *end == '\0' ? end : end + 1;
    if (!unit.empty() && unit != "B" && unit != "iB") {
        return 0;
    }
    return value > (~0ULL >> shift) >> 1 ? 0 : value << shift;
}

void ignored(const char* name, const char* text, const char* wanted) {
    std::fprintf(stderr, "gpupool software GPU: %s='%s' is not %s, and is ignored\n", name, text, wanted);
}

std::uint64_t bytes_of(const char* name, std::uint64_t otherwise) {
    const char* const text = std::getenv(name);
    if (text == nullptr) {
        return otherwise;
    }
    const std::uint64_t given = parse_bytes(text);
    if (given == 0) {
        ignored(name, text, "a number of bytes above 0, like 16G");
    }
    return given != 0 ? given : otherwise;
}

// Parses a whole decimal number up to the limit. Returns false for anything else.
bool parse_number(const char* text, std::uint64_t limit, std::uint64_t& number) {
    const char* const end = text + std::strlen(text);
    const auto [stopped, error] = std::from_chars(text, end, number);
    return error == std::errc() && stopped == end && number <= limit;
}

std::uint64_t time_of(const char* name) {
    const char* const text = std::getenv(name);
    std::uint64_t number = 0;
    if (text == nullptr || parse_number(text, kMaxTime, number)) {
        return number;
    }
    ignored(name, text, "a whole number");
    return 0;
}

int count_of(const char* name, std::uint64_t limit, const char* wanted, int otherwise) {
    const char* const text = std::getenv(name);
    std::uint64_t number = 0;
    if (text == nullptr) {
        return otherwise;
    }
    if (parse_number(text, limit, number)) {
        return static_cast<int>(number);
    }
    ignored(name, text, wanted);
    return otherwise;
}

}  // namespace

const Settings& settings() {
    static const Settings& result = *[] {
        auto* read = new Settings;
        read->devices = count_of("GPUPOOL_SOFTGPU_DEVICES", kMaxDevices, "a whole number up to 64", read->devices);
        read->processors = static_cast<std::uint32_t>(
            count_of("GPUPOOL_SOFTGPU_PROCESSORS", kMaxProcessors, "a whole number up to 512", 0));
        read->memory_bytes = bytes_of("GPUPOOL_SOFTGPU_MEMORY", read->memory_bytes);
        read->context_bytes = bytes_of("GPUPOOL_SOFTGPU_CONTEXT", 0);
        read->kernel_limit = std::chrono::milliseconds(time_of("GPUPOOL_SOFTGPU_KERNEL_LIMIT_MS"));
        read->kernel_duration = std::chrono::microseconds(time_of("GPUPOOL_SOFTGPU_KERNEL_DURATION_US"));
        read->copy_bytes_per_second = bytes_of("GPUPOOL_SOFTGPU_COPY_RATE", 0);
        return read;
    }();
    return result;
}

Clock::time_point end_of_copy(Clock::time_point begin, std::uint64_t bytes) {
    if (settings().copy_bytes_per_second == 0) {
        return begin;
    }
    const double seconds = static_cast<double>(bytes) / static_cast<double>(settings().copy_bytes_per_second);
    return begin +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, 86400.0)));
}

void idle_until(Clock::time_point end, const std::atomic<bool>& stop) {
    constexpr auto kLongest = std::chrono::milliseconds(20);
    for (auto now = Clock::now(); now < end && !stop.load(); now = Clock::now()) {
        std::this_thread::sleep_until(std::min(end, now + kLongest));
    }
}

}  // namespace gpupool::softgpu
