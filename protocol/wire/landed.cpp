#include "protocol/wire/landed.h"

#include <iterator>

namespace gpupool::wire {

bool Landed::add(std::uint64_t number) {
    if (number <= up_to_) {
        return false;
    }
    auto after = runs_.upper_bound(number);  // the first run that begins after it
    const auto before = after == runs_.begin() ? runs_.end() : std::prev(after);
    if (before != runs_.end() && number <= before->second) {
        return false;
    }

    if (number == up_to_ + 1) {
        up_to_ = number;
        if (after != runs_.end() && after->first == number + 1) {
            up_to_ = after->second;
            runs_.erase(after);
        }
        return true;
    }
    std::uint64_t last = number;
    const bool joins_after = after != runs_.end() && after->first == number + 1;
    const bool joins_before = before != runs_.end() && before->second + 1 == number;
    if (!joins_after && !joins_before && runs_.size() >= kMaxHoles) {
        return false;
    }
    if (joins_after) {
        last = after->second;
        after = runs_.erase(after);
    }
    if (joins_before) {
        before->second = last;
    } else {
        runs_.emplace_hint(after, number, last);
    }
    return true;
}

}  // namespace gpupool::wire
