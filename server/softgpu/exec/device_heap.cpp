#include "server/softgpu/exec/device_heap.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "common/mutex.h"
#include "common/round_up.h"
#include "server/softgpu/exec/address_space.h"

namespace gpupool::softgpu {
namespace {

struct Heap {
    Mutex mutex;
    std::unordered_map<std::uint64_t, std::uint64_t> blocks GP_GUARDED_BY(mutex);  // address -> bytes
    std::uint64_t used_bytes GP_GUARDED_BY(mutex) = 0;
    std::uint64_t limit_bytes GP_GUARDED_BY(mutex) = std::uint64_t{8} << 20;
};

Heap& heap() {
    static Heap& instance = *new Heap;
    return instance;
}

// Approximate limit of one printf's output, and the limit of widths and precisions.
constexpr int kMaxPrintfBytes = 65536;

template <class T>
void append(std::string& text, const char* format, T value) {
    const int length = std::snprintf(nullptr, 0, format, value);
    if (length <= 0) {
        return;
    }
    const std::size_t before = text.size();
    text.resize(before + static_cast<std::size_t>(length) + 1);
    std::snprintf(text.data() + before, static_cast<std::size_t>(length) + 1, format, value);
    text.pop_back();
}

}  // namespace

std::uint64_t device_malloc(std::uint64_t size_bytes) {
    if (size_bytes == 0) {
        size_bytes = 1;
    }
    const Lock lock(heap().mutex);
    if (size_bytes > heap().limit_bytes || heap().limit_bytes - heap().used_bytes < size_bytes) {
        return 0;
    }
    void* memory = std::malloc(size_bytes);
    if (memory == nullptr) {
        return 0;
    }
    const auto address = reinterpret_cast<std::uint64_t>(memory);
    heap().blocks[address] = size_bytes;
    heap().used_bytes += size_bytes;
    AddressSpace::instance().add(address, size_bytes);
    return address;
}

bool device_free(std::uint64_t address) {
    if (address == 0) {
        return true;
    }
    const Lock lock(heap().mutex);
    const auto found = heap().blocks.find(address);
    if (found == heap().blocks.end()) {
        return false;
    }
    AddressSpace::instance().remove(address, found->second);
    heap().used_bytes -= found->second;
    heap().blocks.erase(found);
    std::free(reinterpret_cast<void*>(address));
    return true;
}

void set_device_heap_limit(std::uint64_t limit_bytes) {
    const Lock lock(heap().mutex);
    heap().limit_bytes = limit_bytes;
}

std::string device_string(std::uint64_t address) {
    AddressRange range;
    if (!AddressSpace::instance().find(address, range)) {
        return {};
    }
    const std::size_t limit = std::min<std::uint64_t>(range.end - address, 65536);
    const auto* text = reinterpret_cast<const char*>(address);
    return {text, strnlen(text, limit)};
}

std::string format_device_printf(const std::string& format, const std::uint8_t* arguments, std::size_t arguments_bytes,
                                 std::uint32_t& arguments_read) {
    std::string result;
    arguments_read = 0;
    std::size_t used = 0;
    const auto take = [&](std::size_t bytes) {
        used = round_up(used, bytes);
        std::uint64_t value = 0;
        if (used + bytes <= arguments_bytes) {
            std::memcpy(&value, arguments + used, bytes);
        }
        used += bytes;
        ++arguments_read;
        return value;
    };
    for (std::size_t at = 0; at < format.size() && result.size() < kMaxPrintfBytes;) {
        if (format[at] != '%') {
            result += format[at++];
            continue;
        }
        std::string piece = "%";
        std::size_t end = at + 1;
        int wide = 0;
        const auto number_or_star = [&] {
            if (end < format.size() && format[end] == '*') {
                const auto number = static_cast<std::int32_t>(take(4));
                piece += std::to_string(std::clamp(number, -kMaxPrintfBytes, kMaxPrintfBytes));
                ++end;
            } else {
                int number = 0;
                const std::size_t first = end;
                for (; end < format.size() && format[end] >= '0' && format[end] <= '9'; ++end) {
                    number = std::min(kMaxPrintfBytes, number * 10 + (format[end] - '0'));
                }
                if (end != first) {
                    piece += std::to_string(number);
                }
            }
        };
        while (end < format.size() && std::strchr("-+ #0", format[end]) != nullptr && piece.size() < 8) {
            piece += format[end++];
        }
        number_or_star();
        if (end < format.size() && format[end] == '.') {
            piece += format[end++];
            number_or_star();
        }
        while (end < format.size() && std::strchr("hljztL", format[end]) != nullptr) {
            wide += format[end] == 'l' || format[end] == 'z' || format[end] == 'j' || format[end] == 't' ? 1 : 0;
            ++end;
        }
        const char conversion = end < format.size() ? format[end] : '\0';
        if (conversion != '\0' && std::strchr("di", conversion) != nullptr) {
            const std::uint64_t raw = take(wide > 0 ? 8 : 4);
            const long long value = wide > 0 ? static_cast<long long>(raw) : static_cast<std::int32_t>(raw);
            piece += "lld";
            append(result, piece.c_str(), value);
        } else if (conversion != '\0' && std::strchr("uxXoc", conversion) != nullptr) {
            const unsigned long long value = take(wide > 0 ? 8 : 4);
            if (conversion == 'c') {
                piece += 'c';
                append(result, piece.c_str(), static_cast<int>(value));
            } else {
                piece += "ll";
                piece += conversion;
                append(result, piece.c_str(), value);
            }
        } else if (conversion != '\0' && std::strchr("fFeEgGaA", conversion) != nullptr) {
            const std::uint64_t bits = take(8);
            double value;
            std::memcpy(&value, &bits, sizeof value);
            piece += conversion;
            append(result, piece.c_str(), value);
        } else if (conversion == 's') {
            piece += 's';
            const std::uint64_t pointer = take(8);
            const std::string text = pointer == 0 ? "(null)" : device_string(pointer);
            append(result, piece.c_str(), text.c_str());
        } else if (conversion == 'p') {
            append(result, "0x%llx", static_cast<unsigned long long>(take(8)));
        } else {
            result += conversion == '%' ? "%" : piece;
        }
        at = conversion == '\0' ? format.size() : end + 1;
    }
    return result;
}

}  // namespace gpupool::softgpu
