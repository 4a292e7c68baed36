#include "client/core/transfers/lane_opener.h"

#include <unistd.h>

#include <algorithm>
#include <exception>

#include "common/log.h"
#include "common/quiet_thread.h"
#include "protocol/transport/open.h"
#include "protocol/wire/handshake_io.h"

namespace gpupool::client {

LaneOpener::LaneOpener(Config config, LaneTicket ticket, std::size_t count, wire::Lanes& lanes)
    : config_(std::move(config)),
      ticket_(std::move(ticket)),
      count_(std::min(count, wire::Lanes::kMaxLanes)),
      lanes_(lanes) {
    for (auto& lane : descriptors_) {
        std::fill(lane.begin(), lane.end(), -1);
    }
}

void LaneOpener::close_descriptors() noexcept {
    for (const auto& lane : descriptors_) {
        for (const std::atomic<int>& descriptor : lane) {
            if (const int number = descriptor.load(std::memory_order_relaxed); number >= 0) {
                ::close(number);
            }
        }
    }
}

void LaneOpener::begin() noexcept {
    if (count_ == 0 || asked_.exchange(true)) {
        return;
    }
    try {
        for (std::size_t first = 0; first < std::min(count_, kAtOnce); ++first) {
            quiet_thread("gpupool-lanes", [this, first] {
                for (std::size_t index = first; index < count_; index += kAtOnce) {
                    open_one(index);
                }
            }).detach();
        }
    } catch (const std::exception& exception) {
        warn(exception.what());
    }
}

void LaneOpener::open_one(std::size_t index) noexcept {
    try {
        if (const Status opened = open(index); !opened) {
            warn(opened.error().message);
            return;
        }
    } catch (const std::exception& exception) {
        warn(exception.what());
        return;
    }
    if (opened_.fetch_add(1, std::memory_order_relaxed) + 1 == count_) {
        log::info("{} lanes (connections for bulk data) are open", count_);
    }
}

// Only the first failure is logged: the others mostly have the same cause.
void LaneOpener::warn(std::string_view why) noexcept {
    if (!warned_.exchange(true)) {
        log::warn("not all of {} lanes (connections for bulk data) can be opened: {}", count_, why);
    }
}

Status LaneOpener::open(std::size_t index) {
    const auto endpoint = transport::Endpoint::parse(config_.server);
    if (!endpoint) {
        return endpoint.error();
    }
    const auto deadline = transport::Clock::now() + config_.connect_timeout;
    auto connection = transport::connect(*endpoint, config_.transport, deadline);
    if (!connection) {
        return connection.error();
    }
    const Status sent = send_lane_hello(**connection, config_, ticket_, index);
    // Even if sending failed, the server's refusal may still be there to read.
    const auto frame = wire::read_frame(**connection, kMaxWelcomeBytes, deadline);
    if (!frame) {
        return sent ? frame.error() : sent.error();
    }
    GPUPOOL_TRY(read_lane_answer(*frame));
    const std::vector<int> descriptors = (*connection)->descriptors();
    GPUPOOL_TRY(lanes_.add(index, std::move(*connection)));
    for (std::size_t i = 0; i < std::min(descriptors.size(), transport::kMaxDescriptors); ++i) {
        descriptors_[index][i].store(descriptors[i], std::memory_order_relaxed);  // they stay open from now on
    }
    return {};
}

}  // namespace gpupool::client
