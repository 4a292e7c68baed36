#include "common/visible_devices.h"

#include <gtest/gtest.h>

namespace gpupool {
namespace {

using Ordinals = std::vector<int>;

std::vector<DeviceUuid> three_devices() {
    std::vector<DeviceUuid> devices(3);
    for (std::uint8_t i = 0; i < 3; ++i) {
        devices[i] = {0xAB, static_cast<std::uint8_t>(0x10 + i), 0, 0, 1, 2, 3, 4};
    }
    return devices;
}

Ordinals seen(const std::optional<std::string>& value) {
    return visible_devices(value, three_devices());
}

TEST(VisibleDevices, UnsetShowsAllAndEmptyNone) {
    EXPECT_EQ(seen(std::nullopt), (Ordinals{0, 1, 2}));
    EXPECT_EQ(seen(""), Ordinals{});
    EXPECT_EQ(seen(" "), Ordinals{});
}

TEST(VisibleDevices, OrdinalsKeepTheirOrder) {
    EXPECT_EQ(seen("0"), (Ordinals{0}));
    EXPECT_EQ(seen("2,0"), (Ordinals{2, 0}));
    EXPECT_EQ(seen(" 1 , 2 "), (Ordinals{1, 2}));
    EXPECT_EQ(seen("1gpu,+2x"), (Ordinals{1, 2}));
}

TEST(VisibleDevices, FirstInvalidEntryEndsTheList) {
    EXPECT_EQ(seen("-1"), Ordinals{});
    EXPECT_EQ(seen("1,-1,0"), (Ordinals{1}));
    EXPECT_EQ(seen("0,3,1"), (Ordinals{0}));
    EXPECT_EQ(seen("0,,1"), (Ordinals{0}));
    EXPECT_EQ(seen("none,0"), Ordinals{});
    EXPECT_EQ(seen("0,99999999999999999999,1"), (Ordinals{0}));
}

TEST(VisibleDevices, RepetitionEmptiesTheList) {
    EXPECT_EQ(seen("0,1,0"), Ordinals{});
}

TEST(VisibleDevices, UuidPrefixes) {
    EXPECT_EQ(uuid_text(three_devices()[1]), "GPU-ab110000-0102-0304-0000-000000000000");
    EXPECT_EQ(seen("GPU-ab110000-0102-0304-0000-000000000000"), (Ordinals{1}));
    EXPECT_EQ(seen("GPU-AB12,GPU-ab10"), (Ordinals{2, 0}));
    EXPECT_EQ(seen("GPU-ab"), Ordinals{});  // ambiguous
    EXPECT_EQ(seen("GPU-ab10,GPU-ff"), (Ordinals{0}));
    EXPECT_EQ(seen("GPU-ab10,1"), (Ordinals{0}));  // ordinals and UUIDs may not be mixed
    EXPECT_EQ(seen("1,GPU-ab10"), (Ordinals{1}));
}

TEST(VisibleDevices, ProgramsOrdinalsCountTheOfferedDevices) {
    using Text = std::optional<std::string>;
    EXPECT_EQ(visible_among(std::nullopt, std::nullopt), Text());
    EXPECT_EQ(visible_among("1,3", std::nullopt), Text("1,3"));
    EXPECT_EQ(visible_among(std::nullopt, "2"), Text("2"));
    EXPECT_EQ(visible_among("1,3", "1,0"), Text("3,1"));
    EXPECT_EQ(visible_among("1,3", "2"), Text(""));
    EXPECT_EQ(visible_among("1,3", "0,2,1"), Text("1"));
    EXPECT_EQ(visible_among("1,3", ""), Text(""));
    EXPECT_EQ(visible_among("", "0"), Text(""));
    EXPECT_EQ(visible_among("GPU-ab,GPU-cd", "1"), Text("GPU-cd"));
    EXPECT_EQ(visible_among("GPU-ab,GPU-cd", "GPU-cd"), Text("GPU-cd"));
    EXPECT_EQ(visible_among("GPU-ab,GPU-cd", "GPU-ef"), Text(""));
    EXPECT_EQ(visible_among("0", "GPU-ab"), Text(""));
}

}  // namespace
}  // namespace gpupool
