// Writing and reading a record's body, in units of 8 bytes; every read is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "protocol/codec/record.h"

namespace gpupool::codec {

// Writes without bounds checks: the caller computed the size by the same rules.
class Writer {
  public:
    explicit Writer(std::byte* place) : place_(place) {}

    template <class T>
    void value(const T& v) {
        static_assert(std::is_trivially_copyable_v<T>);
        if constexpr (sizeof(T) < 8) {
            std::memset(place_, 0, 8);
        }
        std::memcpy(place_, &v, sizeof v);
        advance(sizeof v);
    }

    void bytes(const void* data, std::size_t count) {
        if (count != 0) {
            std::memcpy(place_, data, count);
        }
        const std::size_t rest = aligned(count) - count;
        std::memset(place_ + count, 0, rest);
        place_ += count + rest;
    }

    [[nodiscard]] std::byte* place() const { return place_; }

  private:
    void advance(std::size_t count) {
        const std::size_t rest = aligned(count) - count;
        if (count > 8 && rest != 0) {
            std::memset(place_ + count, 0, rest);
        }
        place_ += aligned(count);
    }
    std::byte* place_;
};

// Reads bytes from a peer. After the first read past the end, every read returns zero and `ok()` is false.
class Reader {
  public:
    explicit Reader(std::span<std::byte> body) : place_(body.data()), left_(body.size()) {}

    template <class T>
    T value() {
        static_assert(std::is_trivially_copyable_v<T>);
        T v{};
        if (std::byte* from = take(sizeof(T))) {
            std::memcpy(&v, from, sizeof v);
        }
        return v;
    }

    // Pointer to the next `count` bytes, or nullptr.
    std::byte* take(std::size_t count) {
        if (count > left_ || aligned(count) > left_) {
            ok_ = false;
            left_ = 0;
            return nullptr;
        }
        std::byte* at = place_;
        place_ += aligned(count);
        left_ -= aligned(count);
        return at;
    }

    void fail() {
        ok_ = false;
        left_ = 0;
    }
    [[nodiscard]] bool ok() const { return ok_; }
    [[nodiscard]] std::size_t left() const { return left_; }

  private:
    std::byte* place_;
    std::size_t left_;
    bool ok_ = true;
};

}  // namespace gpupool::codec
