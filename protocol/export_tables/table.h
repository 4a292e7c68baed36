// Builds a table: its size in slot 0, the implemented slots, and a refusing function in every other slot.
//
// Ownership: values with static storage. Threads: any. Errors: a call of an unlisted slot is logged once and returns
// CUDA_ERROR_NOT_SUPPORTED.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <initializer_list>
#include <utility>

#include "protocol/calls/cuda_api.h"

namespace gpupool::client::export_tables {

using Slot = const void*;

template <class Function>
Slot slot(Function* function) noexcept {
    return reinterpret_cast<Slot>(function);
}

void report_unlisted(const char* table, std::size_t index) noexcept;

// One function per slot, so that the log can name it. `Tag` has `kName` and `kSlotCount`.
template <class Tag, std::size_t Index>
CUresult unlisted() noexcept {
    static std::atomic_flag reported = ATOMIC_FLAG_INIT;
    if (!reported.test_and_set(std::memory_order_relaxed)) {
        report_unlisted(Tag::kName, Index);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

template <class Tag>
using Table = std::array<Slot, Tag::kSlotCount>;

// A listed slot may be null if the driver's is null.
template <class Tag>
Table<Tag> make_table(std::initializer_list<std::pair<std::size_t, Slot>> listed) noexcept {
    Table<Tag> table = []<std::size_t... Index>(std::index_sequence<Index...>) {
        return Table<Tag>{slot(unlisted<Tag, Index>)...};
    }
    (std::make_index_sequence<Tag::kSlotCount>());
    table[0] = reinterpret_cast<Slot>(Tag::kSlotCount * sizeof(Slot));
    for (const auto& [index, function] : listed) {
        table[index] = function;
    }
    return table;
}

}  // namespace gpupool::client::export_tables
