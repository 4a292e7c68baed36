// A first-in, first-out queue in one block of memory that is reused. std::deque allocates and frees a block every few
// elements, even if it never holds more than a few.
//
// Ownership: owns its elements. Threads: one at a time. Errors: std::bad_alloc when it has to grow.
#pragma once

#include <cassert>
#include <cstddef>
#include <utility>
#include <vector>

namespace gpupool {

template <class T>
class Fifo {
  public:
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    // Counted from the front.
    [[nodiscard]] T& operator[](std::size_t i) noexcept { return slots_[place(i)]; }
    [[nodiscard]] const T& operator[](std::size_t i) const noexcept { return slots_[place(i)]; }
    [[nodiscard]] T& front() noexcept { return (*this)[0]; }
    [[nodiscard]] T& back() noexcept { return (*this)[size_ - 1]; }

    void push_back(T element) {
        if (size_ == slots_.size()) {
            move_to(slots_.empty() ? kLeast : 2 * slots_.size());
        }
        ++size_;
        back() = std::move(element);
    }
    // Inserts before the element at `i`; moves the elements behind it.
    void insert(std::size_t i, T element) {
        push_back(std::move(element));
        for (std::size_t at = size_ - 1; at > i; --at) {
            std::swap((*this)[at], (*this)[at - 1]);
        }
    }
    void pop_front() {
        assert(!empty());
        front() = T();
        first_ = place(1);
        if (--size_ == 0 && slots_.size() > kKept) {
            move_to(kKept);  // release the memory that a burst needed
        }
    }

  private:
    static constexpr std::size_t kLeast = 16, kKept = 1024;  // powers of two

    [[nodiscard]] std::size_t place(std::size_t i) const noexcept { return (first_ + i) & (slots_.size() - 1); }
    void move_to(std::size_t slots) {
        std::vector<T> more(slots);
        for (std::size_t i = 0; i < size_; ++i) {
            more[i] = std::move((*this)[i]);
        }
        slots_ = std::move(more);
        first_ = 0;
    }

    std::vector<T> slots_;
    std::size_t first_ = 0, size_ = 0;
};

}  // namespace gpupool
