// What `gpupool top` shows: lines of a terminal's size, made of a TopModel. The terminal is another file's matter
// (top.cpp).
//
// Ownership: values. Threads: any. Errors: none; a screen of any size has what fits into it, the header first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "client/cli/top_model.h"

namespace gpupool::cli {

enum class TopStyle : std::uint8_t { plain, heading, high, alarm };

struct TopLine {
    std::string text;  // at most the screen's columns wide
    TopStyle style = TopStyle::plain;

    bool operator==(const TopLine&) const = default;
};

struct TopSize {
    std::size_t rows = 24;
    std::size_t columns = 80;
    bool unicode = true;     // the terminal shows UTF-8
    std::size_t scroll = 0;  // sessions to omit at the top
};

// As many lines as the screen has rows, or fewer.
std::vector<TopLine> top_screen(const TopModel& model, const TopSize& size, TopModel::TimePoint now);

// "[####++....]": used, promised but not used, neither. `columns`: with the brackets.
std::string top_bar(std::uint64_t used, std::uint64_t promised, std::uint64_t total, std::size_t columns);

// A character for each of the last `columns` values, as high as the value is of the largest one; blanks before the
// first.
std::string sparkline(const std::deque<std::uint64_t>& values, std::size_t columns, bool unicode);

}  // namespace gpupool::cli
