// The screen of a terminal: what is visible after a program has written to it. Knows the control sequences that ncurses
// sends to an xterm or a vt100; each character takes one column.
//
// Ownership: values. Threads: one at a time. Errors: unknown sequences are ignored.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace gpupool::test {

class TerminalScreen {
  public:
    TerminalScreen(std::size_t rows, std::size_t columns) { resize(rows, columns); }

    // Clears the screen too.
    void resize(std::size_t rows, std::size_t columns) {
        cells_.assign(rows, std::vector<std::string>(columns, " "));
        row_ = column_ = top_ = 0;
        bottom_ = rows - 1;
    }
    void write(std::string_view bytes) {
        pending_ += bytes;
        std::size_t used = 0;
        while (used < pending_.size()) {
            const std::size_t taken = take(std::string_view(pending_).substr(used));
            if (taken == 0) {
                break;  // the rest of a sequence has not come yet
            }
            used += taken;
        }
        pending_.erase(0, used);
    }
    [[nodiscard]] std::string text() const {
        std::string all;
        for (const auto& line : cells_) {
            std::string text;
            for (const std::string& cell : line) {
                text += cell;
            }
            all += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
        }
        return all;
    }
    [[nodiscard]] bool shows(std::string_view part) const { return text().find(part) != std::string::npos; }

  private:
    // Returns how many bytes it has taken.
    std::size_t take(std::string_view bytes) {
        const auto first = static_cast<unsigned char>(bytes[0]);
        if (first == 0x1b) {
            return take_escape(bytes);
        }
        if (first < 0x20) {
            control(static_cast<char>(first));
            return 1;
        }
        const std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
        if (bytes.size() < length) {
            return 0;
        }
        put(std::string(bytes.substr(0, length)));
        return length;
    }
    void control(char which) {
        switch (which) {
            case '\r': column_ = 0; break;
            case '\b': column_ -= std::min<std::size_t>(column_, 1); break;
            case '\n': down(); break;
            case '\t': column_ = std::min((column_ / 8 + 1) * 8, cells_[0].size() - 1); break;
            default: break;
        }
    }
    // Moves the lines of the scroll region from `first` on: down, or up.
    void shift_down(std::size_t first) {
        const auto begin = cells_.begin() + static_cast<std::ptrdiff_t>(first);
        std::rotate(begin, cells_.begin() + static_cast<std::ptrdiff_t>(bottom_),
                    cells_.begin() + static_cast<std::ptrdiff_t>(bottom_) + 1);
        std::ranges::fill(cells_[first], " ");
    }
    void shift_up(std::size_t first) {
        const auto begin = cells_.begin() + static_cast<std::ptrdiff_t>(first);
        std::rotate(begin, begin + 1, cells_.begin() + static_cast<std::ptrdiff_t>(bottom_) + 1);
        std::ranges::fill(cells_[bottom_], " ");
    }
    void down() {
        if (row_ == bottom_) {
            shift_up(top_);
        } else {
            row_ = std::min(row_ + 1, cells_.size() - 1);
        }
    }
    void up() {
        if (row_ == top_) {
            shift_down(top_);
        } else {
            row_ -= std::min<std::size_t>(row_, 1);
        }
    }
    void put(std::string character) {
        if (column_ >= cells_[0].size()) {
            column_ = 0;
            down();
        }
        last_ = character;
        cells_[row_][column_++] = std::move(character);
    }
    std::size_t take_escape(std::string_view bytes) {
        if (bytes.size() < 2) {
            return 0;
        }
        if (bytes[1] == '(' || bytes[1] == ')') {
            return bytes.size() < 3 ? 0 : 3;
        }
        if (bytes[1] != '[') {
            if (bytes[1] == 'M') {
                up();
            }
            return 2;
        }
        std::size_t end = 2;
        while (end < bytes.size() && (bytes[end] < '@' || bytes[end] > '~')) {
            ++end;
        }
        if (end == bytes.size()) {
            return 0;
        }
        if (bytes[2] != '?') {
            sequence(bytes[end], std::string(bytes.substr(2, end - 2)));
        }
        return end + 1;
    }
    void sequence(char command, const std::string& parameters) {
        const auto first = static_cast<std::size_t>(std::strtoul(parameters.c_str(), nullptr, 10));
        const std::size_t semicolon = parameters.find(';');
        const auto second =
            semicolon == std::string::npos
                ? 0
                : static_cast<std::size_t>(std::strtoul(parameters.c_str() + semicolon + 1, nullptr, 10));
        const std::size_t count = std::max<std::size_t>(first, 1);
        auto& line = cells_[row_];
        const std::size_t at = std::min(column_, line.size() - 1);
        const auto here = line.begin() + static_cast<std::ptrdiff_t>(at);
        const auto rest = static_cast<std::ptrdiff_t>(std::min(count, line.size() - at));
        switch (command) {
            case 'H':
                row_ = std::min(count, cells_.size()) - 1;
                column_ = std::min(std::max<std::size_t>(second, 1), line.size()) - 1;
                break;
            case 'A': row_ -= std::min(row_, count); break;
            case 'B': row_ = std::min(row_ + count, cells_.size() - 1); break;
            case 'C': column_ = std::min(column_ + count, line.size() - 1); break;
            case 'D': column_ -= std::min(column_, count); break;
            case 'G': column_ = std::min(count, line.size()) - 1; break;
            case 'd': row_ = std::min(count, cells_.size()) - 1; break;
            case 'K': std::fill(first == 1 ? line.begin() : here, first == 1 ? here + 1 : line.end(), " "); break;
            case 'X': std::fill(here, here + rest, " "); break;
            case 'P': std::fill(std::move(here + rest, line.end(), here), line.end(), " "); break;
            case '@': std::fill(here, std::move_backward(here, line.end() - rest, line.end()), " "); break;
            case 'b':
                for (std::size_t i = 0; i < count; ++i) {
                    put(last_);
                }
                break;
            case 'J': erase_display(first); break;
            case 'L':
                for (std::size_t i = 0; i < count && row_ <= bottom_; ++i) {
                    shift_down(row_);
                }
                break;
            case 'M':
                for (std::size_t i = 0; i < count && row_ <= bottom_; ++i) {
                    shift_up(row_);
                }
                break;
            case 'r':
                top_ = std::min(count, cells_.size()) - 1;
                bottom_ = second == 0 ? cells_.size() - 1 : std::min(second, cells_.size()) - 1;
                top_ = std::min(top_, bottom_);
                row_ = column_ = 0;
                break;
            default: break;
        }
    }
    void erase_display(std::size_t what) {
        for (std::size_t row = 0; row < cells_.size(); ++row) {
            auto& line = cells_[row];
            const bool whole = what == 2 || (what == 0 && row > row_) || (what == 1 && row < row_);
            if (whole) {
                std::ranges::fill(line, " ");
            } else if (row == row_ && what == 0) {
                std::fill(line.begin() + static_cast<std::ptrdiff_t>(std::min(column_, line.size())), line.end(), " ");
            }
        }
    }

    std::vector<std::vector<std::string>> cells_;
    std::size_t row_ = 0, column_ = 0;
    std::size_t top_ = 0, bottom_ = 0;  // of the scroll region
    std::string last_ = " ";
    std::string pending_;
};

}  // namespace gpupool::test
