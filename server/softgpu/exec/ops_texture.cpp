// Texture fetches, surface loads and stores. The lowering describes the access in a TextureAccess. Inst::a contains the
// objects' handles, which may differ between lanes.
#include <algorithm>
#include <array>

#include "server/softgpu/exec/half.h"
#include "server/softgpu/exec/texture.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

// Coordinates are clamped to this, so that they fit an integer.
constexpr float kCoordinateLimit = 1 << 24;

template <class T>
T load(const u8* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

float from_srgb(float v) {
    return v <= 0.04045F ? v / 12.92F : std::pow((v + 0.055F) / 1.055F, 2.4F);
}

float read_real(const Texture& t, const u8* p, u32 channel) {
    switch (t.format) {
        case TexelFormat::u8: {
            const float v = static_cast<float>(p[0]) / 255.0F;
            return t.srgb && channel < 3 ? from_srgb(v) : v;
        }
        case TexelFormat::s8: return std::max(-1.0F, static_cast<float>(load<std::int8_t>(p)) / 127.0F);
        case TexelFormat::u16: return static_cast<float>(load<u16>(p)) / 65535.0F;
        case TexelFormat::s16: return std::max(-1.0F, static_cast<float>(load<std::int16_t>(p)) / 32767.0F);
        case TexelFormat::u32: return static_cast<float>(load<u32>(p)) / 4294967295.0F;
        case TexelFormat::s32: return static_cast<float>(load<s32>(p)) / 2147483647.0F;
        case TexelFormat::f16: return static_cast<float>(to_double(Half{load<u16>(p)}));
        case TexelFormat::f32: return load<float>(p);
    }
    return 0;
}

u32 read_bits(const Texture& t, const u8* p) {
    switch (t.format) {
        case TexelFormat::u8: return p[0];
        case TexelFormat::s8: return static_cast<u32>(s32{load<std::int8_t>(p)});
        case TexelFormat::u16: return load<u16>(p);
        case TexelFormat::s16: return static_cast<u32>(s32{load<std::int16_t>(p)});
        case TexelFormat::f16: return std::bit_cast<u32>(static_cast<float>(to_double(Half{load<u16>(p)})));
        default: return load<u32>(p);
    }
}

bool reads_real(const Texture& t) {
    return t.unit_range || t.format == TexelFormat::f16 || t.format == TexelFormat::f32;
}

using Real4 = std::array<float, 4>;
using Bits4 = std::array<u32, 4>;

// Maps an index outside of [0, extent) by the address mode. Returns false for the border.
bool place(s64& index, u32 extent, AddressMode mode) {
    const s64 n = extent;
    if (index >= 0 && index < n) {
        return true;
    }
    switch (mode) {
        case AddressMode::clamp: index = index < 0 ? 0 : n - 1; return true;
        case AddressMode::wrap:
            index %= n;
            if (index < 0) {
                index += n;
            }
            return true;
        case AddressMode::mirror:
            index %= 2 * n;
            if (index < 0) {
                index += 2 * n;
            }
            if (index >= n) {
                index = 2 * n - 1 - index;
            }
            return true;
        case AddressMode::border: return false;
    }
    return false;
}

struct Fetch {
    const Texture& t;
    const TexelGrid& grid;
    u32 dimensions;
    s64 layer;  // in front of the other coordinates; 0 without layers

    // Null: use the border.
    const u8* texel(s64 x, s64 y, s64 z) const {
        const s64 index[3] = {x, y, z};
        s64 at[3] = {0, 0, 0};
        const u32 extents[3] = {grid.width, grid.height, grid.depth};
        for (u32 k = 0; k < dimensions; ++k) {
            at[k] = index[k];
            if (!place(at[k], extents[k], t.modes[k])) {
                return nullptr;
            }
        }
        return reinterpret_cast<const u8*>(grid.address + static_cast<u64>(at[0]) * t.texel_bytes +
                                           static_cast<u64>(at[1]) * grid.row_bytes +
                                           static_cast<u64>(at[2] + layer) * grid.slice_bytes);
    }
    Real4 real(s64 x, s64 y, s64 z) const {
        const u8* p = texel(x, y, z);
        if (p == nullptr) {
            return {t.border[0], t.border[1], t.border[2], t.border[3]};
        }
        Real4 result{0, 0, 0, 1};
        const u32 step = t.texel_bytes / t.channels;
        for (u32 c = 0; c < t.channels; ++c) {
            result[c] = read_real(t, p + c * step, c);
        }
        return result;
    }
    Bits4 bits(s64 x, s64 y, s64 z) const {
        Bits4 result{0, 0, 0, reads_real(t) ? 0x3F800000U : 1U};
        const u8* p = texel(x, y, z);
        if (p == nullptr) {
            for (u32 c = 0; c < 4; ++c) {
                result[c] = std::bit_cast<u32>(t.border[c]);
            }
            return result;
        }
        const u32 step = t.texel_bytes / t.channels;
        for (u32 c = 0; c < t.channels; ++c) {
            result[c] = read_bits(t, p + c * step);
        }
        return result;
    }
};

// Converts the program's coordinate to texels, before rounding.
float scaled(const Texture& t, float x, u32 extent, AddressMode mode) {
    if (x != x) {
        return 0;
    }
    if (t.normalized_coordinates) {
        if (mode == AddressMode::wrap) {
            x -= std::floor(x);
        }
        if (mode == AddressMode::mirror) {
            x -= 2 * std::floor(x / 2);
        }
        x *= static_cast<float>(extent);
    }
    return std::clamp(x, -kCoordinateLimit, kCoordinateLimit);
}

// The texels around a point: the lower index, and the upper one's weight in 8 bits, as in hardware.
struct Neighbours {
    s64 low;
    float weight;
};
Neighbours neighbours(float x) {
    const float centred = x - 0.5F;
    const float low = std::floor(centred);
    return {static_cast<s64>(low), std::nearbyint((centred - low) * 256.0F) / 256.0F};
}

Real4 filter(const Fetch& fetch, const float* x) {
    Neighbours around[3] = {};
    for (u32 k = 0; k < fetch.dimensions; ++k) {
        around[k] = neighbours(x[k]);
    }
    Real4 sum{0, 0, 0, 0};
    for (u32 corner = 0; corner < 1U << fetch.dimensions; ++corner) {
        float weight = 1;
        s64 at[3] = {0, 0, 0};
        for (u32 k = 0; k < fetch.dimensions; ++k) {
            const bool upper = (corner >> k & 1) != 0;
            at[k] = around[k].low + (upper ? 1 : 0);
            weight *= upper ? around[k].weight : 1 - around[k].weight;
        }
        if (weight == 0) {
            continue;
        }
        const Real4 texel = fetch.real(at[0], at[1], at[2]);
        for (u32 c = 0; c < 4; ++c) {
            sum[c] += weight * texel[c];
        }
    }
    return sum;
}

Bits4 to_bits(const Real4& v) {
    return {std::bit_cast<u32>(v[0]), std::bit_cast<u32>(v[1]), std::bit_cast<u32>(v[2]), std::bit_cast<u32>(v[3])};
}

// Cube maps: the face that a direction points to, and the position on it.
u32 face_of(const float* direction, float* at) {
    const float x = direction[0], y = direction[1], z = direction[2];
    const float ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z);
    u32 face;
    float major, s, t;
    if (ax >= ay && ax >= az) {
        face = x >= 0 ? 0 : 1, major = ax, s = x >= 0 ? -z : z, t = -y;
    } else if (ay >= az) {
        face = y >= 0 ? 2 : 3, major = ay, s = x, t = y >= 0 ? z : -z;
    } else {
        face = z >= 0 ? 4 : 5, major = az, s = z >= 0 ? x : -x, t = -y;
    }
    if (major == 0) {
        major = 1;
    }
    at[0] = (s / major + 1) / 2;
    at[1] = (t / major + 1) / 2;
    at[2] = 0;
    return face;
}

class Sampler {
  public:
    Sampler(Warp& w, const TextureAccess& access, u32 lane) : w_(w), access_(access), lane_(lane) {}

    Bits4 sample(const Texture& t) const {
        const s64 layer = layer_of(t);
        if (access_.integer_coordinates) {
            return fetch_integer(t, layer);
        }
        float x[3] = {0, 0, 0};
        for (u32 k = 0; k < access_.dimensions; ++k) {
            x[k] = w_.reg<float>(access_.coordinates[k])[lane_];
        }
        s64 slice = layer;
        u32 dimensions = access_.dimensions;
        if (access_.cube) {
            float at[3];
            slice = layer * 6 + face_of(x, at);
            std::copy(at, at + 3, x);
            dimensions = 2;
        }
        const float level = level_of(t);
        const u32 lower = static_cast<u32>(level);
        const float between = level - static_cast<float>(lower);
        if (!reads_real(t)) {
            return at_level(t, static_cast<u32>(level + 0.5F), slice, dimensions, x);
        }
        if (!t.linear_levels || between == 0) {
            return at_level(t, static_cast<u32>(level + (t.linear_levels ? 0 : 0.5F)), slice, dimensions, x);
        }
        const Bits4 a = at_level(t, lower, slice, dimensions, x);
        const Bits4 b = at_level(t, lower + 1, slice, dimensions, x);
        Bits4 result{};
        for (u32 c = 0; c < 4; ++c) {
            result[c] =
                std::bit_cast<u32>(std::bit_cast<float>(a[c]) * (1 - between) + std::bit_cast<float>(b[c]) * between);
        }
        return result;
    }

    // tld4: one component of the four texels around a point, anticlockwise from the lower left.
    Bits4 gather(const Texture& t) const {
        const TexelGrid& grid = t.levels[0];
        const Fetch fetch{t, grid, 2, layer_of(t)};
        const float at[2] = {w_.reg<float>(access_.coordinates[0])[lane_],
                             w_.reg<float>(access_.coordinates[1])[lane_]};
        const auto x = neighbours(scaled(t, at[0], grid.width, t.modes[0]) + offset(0));
        const auto y = neighbours(scaled(t, at[1], grid.height, t.modes[1]) + offset(1));
        constexpr s64 kSteps[4][2] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
        Bits4 result{};
        for (u32 k = 0; k < 4; ++k) {
            const s64 i = x.low + kSteps[k][0], j = y.low + kSteps[k][1];
            result[k] = reads_real(t) ? std::bit_cast<u32>(fetch.real(i, j, 0)[access_.gathered])
                                      : fetch.bits(i, j, 0)[access_.gathered];
        }
        return result;
    }

  private:
    // An offset in texels, which has four bits in the instruction.
    float offset(u32 k) const {
        if (access_.offsets[k] == kNoSlot) {
            return 0;
        }
        return static_cast<float>(std::clamp(w_.reg<s32>(access_.offsets[k])[lane_], -8, 7));
    }

    s64 layer_of(const Texture& t) const {
        if (access_.layer == kNoSlot || t.layers == 0) {
            return 0;
        }
        return std::min<s64>(w_.reg<u32>(access_.layer)[lane_], t.layers - 1);
    }

    Bits4 fetch_integer(const Texture& t, s64 layer) const {
        s64 at[3] = {0, 0, 0};
        for (u32 k = 0; k < access_.dimensions; ++k) {
            at[k] = w_.reg<s32>(access_.coordinates[k])[lane_] + static_cast<s64>(offset(k));
        }
        u32 level = 0;
        if (access_.level != kNoSlot) {
            const s32 asked = w_.reg<s32>(access_.level)[lane_];
            level = static_cast<u32>(std::clamp<s64>(asked, 0, static_cast<s64>(t.levels.size()) - 1));
        }
        const Fetch fetch{t, t.levels[level], access_.dimensions, layer};
        if (t.buffer && (at[0] < 0 || at[0] >= fetch.grid.width)) {
            return {0, 0, 0, 0};
        }
        return reads_real(t) ? to_bits(fetch.real(at[0], at[1], at[2])) : fetch.bits(at[0], at[1], at[2]);
    }

    float level_of(const Texture& t) const {
        const auto highest = static_cast<float>(t.levels.size() - 1);
        float level = 0;
        if (access_.level != kNoSlot) {
            level = w_.reg<float>(access_.level)[lane_] + t.level_bias;
        } else if (access_.along_x[0] != kNoSlot) {
            level = std::log2(std::max(footprint(t, access_.along_x), footprint(t, access_.along_y))) + t.level_bias;
        }
        if (t.levels.size() > 1) {
            level = std::clamp(level, t.lowest_level, std::max(t.lowest_level, t.highest_level));
        }
        return level >= 0 ? std::min(level, highest) : 0;
    }
    // Number of texels that a step on the screen covers.
    float footprint(const Texture& t, const u32* slots) const {
        const float extents[3] = {static_cast<float>(t.levels[0].width), static_cast<float>(t.levels[0].height),
                                  static_cast<float>(t.levels[0].depth)};
        float sum = 0;
        for (u32 k = 0; k < access_.dimensions; ++k) {
            if (slots[k] == kNoSlot) {
                continue;
            }
            float step = w_.reg<float>(slots[k])[lane_];
            if (t.normalized_coordinates) {
                step *= extents[k];
            }
            sum += step * step;
        }
        return std::sqrt(sum);
    }

    Bits4 at_level(const Texture& t, u32 level, s64 slice, u32 dimensions, const float* from) const {
        const TexelGrid& grid = t.levels[std::min<std::size_t>(level, t.levels.size() - 1)];
        const Fetch fetch{t, grid, dimensions, slice};
        const u32 extents[3] = {grid.width, grid.height, grid.depth};
        float x[3] = {0, 0, 0};
        for (u32 k = 0; k < dimensions; ++k) {
            x[k] = scaled(t, from[k], extents[k], t.modes[k]) + offset(k);
        }
        if (t.linear && reads_real(t)) {
            return to_bits(filter(fetch, x));
        }
        s64 at[3] = {0, 0, 0};
        for (u32 k = 0; k < dimensions; ++k) {
            at[k] = static_cast<s64>(std::floor(x[k]));
        }
        return reads_real(t) ? to_bits(fetch.real(at[0], at[1], at[2])) : fetch.bits(at[0], at[1], at[2]);
    }

    Warp& w_;
    const TextureAccess& access_;
    u32 lane_;
};

const TextureAccess& access_of(const Warp& w, const Inst& i) {
    return w.current.frame->function->textures[i.extra];
}

// Finds an object. Using a texture as a surface or the reverse is a fault.
const Texture* object_of(Warp& w, const Inst& i, u64 handle, bool surface) {
    const Texture* t = w.textures.find(handle, w.launch->texture_generation);
    if (t == nullptr || t->surface != surface) {
        w.raise(FaultKind::illegal_address, i, handle,
                surface ? "no surface object has this handle" : "no texture object has this handle");
        return nullptr;
    }
    return t;
}

template <bool Gather>
void run_texture(Warp& w, const Inst& i) {
    const TextureAccess& access = access_of(w, i);
    const u64* handles = w.reg<u64>(i.a);
    Bits4 values[kLaneCount];
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        const Texture* t = object_of(w, i, handles[lane], false);
        if (t == nullptr) {
            return;
        }
        const Sampler sampler(w, access, lane);
        values[lane] = Gather ? sampler.gather(*t) : sampler.sample(*t);
    }
    for (u32 c = 0; c < 4; ++c) {
        if (access.results[c] == kNoSlot) {
            continue;
        }
        u32* d = w.reg<u32>(access.results[c]);
        each_lane(w.exec, [&](u32 l) { d[l] = values[l][c]; });
    }
}

// The address of a lane's surface access; 0: outside, and ignored.
bool surface_address(Warp& w, const Inst& i, const Texture& t, const TextureAccess& access, u32 lane, u32 bytes,
                     u64& address) {
    const TexelGrid& grid = t.levels[0];
    const u32 limits[3] = {grid.width * t.texel_bytes, grid.height, grid.depth};
    s64 at[3] = {0, 0, 0};
    for (u32 k = 0; k < access.dimensions; ++k) {
        at[k] = w.reg<s32>(access.coordinates[k])[lane];
    }
    if (access.layer != kNoSlot) {
        at[2] = w.reg<u32>(access.layer)[lane];
    }
    address = 0;
    for (u32 k = 0; k < 3; ++k) {
        const s64 last = static_cast<s64>(limits[k]) - (k == 0 ? bytes : 1);
        if (at[k] >= 0 && at[k] <= last) {
            continue;
        }
        if (access.outside == TextureAccess::Outside::zero) {
            return true;
        }
        if (access.outside == TextureAccess::Outside::trap || last < 0) {
            w.raise(FaultKind::illegal_address, i, static_cast<u64>(at[k]), "beyond the surface");
            return false;
        }
        at[k] = at[k] < 0 ? 0 : last;
    }
    if (at[0] % bytes != 0) {
        w.raise(FaultKind::misaligned_address, i, static_cast<u64>(at[0]), "x is not a multiple of the access");
        return false;
    }
    address = grid.address + static_cast<u64>(at[0]) + static_cast<u64>(at[1]) * grid.row_bytes +
              static_cast<u64>(at[2]) * grid.slice_bytes;
    return true;
}

u32 element_bytes(TextureAccess::Kind kind) {
    switch (kind) {
        case TextureAccess::Kind::b8: return 1;
        case TextureAccess::Kind::b16: return 2;
        case TextureAccess::Kind::b64: return 8;
        default: return 4;
    }
}

// 8-bit elements are in 16-bit registers.
u32 register_bytes(TextureAccess::Kind kind) {
    return std::max<u32>(2, element_bytes(kind));
}

template <bool Store>
void run_surface(Warp& w, const Inst& i) {
    const TextureAccess& access = access_of(w, i);
    const u64* handles = w.reg<u64>(i.a);
    const u32 element = element_bytes(access.kind), width = register_bytes(access.kind);
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        const Texture* t = object_of(w, i, handles[lane], true);
        u64 address = 0;
        if (t == nullptr || !surface_address(w, i, *t, access, lane, element * access.elements, address)) {
            return;
        }
        for (u32 k = 0; k < access.elements; ++k) {
            if (access.results[k] == kNoSlot) {
                continue;
            }
            auto* at = reinterpret_cast<u8*>(address + u64{k} * element);
            auto* value = w.reg<u8>(access.results[k]) + std::size_t{lane} * width;
            if (Store) {
                if (address != 0) {
                    std::memcpy(at, value, element);
                }
            } else {
                std::memset(value, 0, width);
                if (address != 0) {
                    std::memcpy(value, at, element);
                }
            }
        }
    }
}

// txq, suq: mode selects the query.
void run_query(Warp& w, const Inst& i) {
    const u64* handles = w.reg<u64>(i.a);
    u32* d = w.reg<u32>(i.d);
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        const Texture* t = object_of(w, i, handles[lane], i.imm != 0);
        if (t == nullptr) {
            return;
        }
        const u32 level =
            i.b == kNoSlot ? 0 : std::min<u32>(w.reg<u32>(i.b)[lane], static_cast<u32>(t->levels.size()) - 1);
        const TexelGrid& grid = t->levels[level];
        const u32 answers[] = {grid.width, grid.height, t->layers != 0 ? 1 : grid.depth, t->layers,
                               static_cast<u32>(t->levels.size())};
        d[lane] = answers[i.mode % 5];
    }
}

// The object of the module's reference number imm.
void run_reference(Warp& w, const Inst& i) {
    u64* d = w.reg<u64>(i.d);
    const u64 object = w.launch->references[i.imm];
    each_lane(w.exec, [=](u32 l) { d[l] = object; });
}

}  // namespace

void register_texture(OpTable& t) {
    t.add({"texture.sample"}, {run_texture<false>, Slot::none, {Slot::bits64}, Slot::none, Flow::checked});
    t.add({"texture.gather"}, {run_texture<true>, Slot::none, {Slot::bits64}, Slot::none, Flow::checked});
    t.add({"surface.load"}, {run_surface<false>, Slot::none, {Slot::bits64}, Slot::none, Flow::checked});
    t.add({"surface.store"}, {run_surface<true>, Slot::none, {Slot::bits64}, Slot::none, Flow::checked});
    t.add({"texture.reference"}, {run_reference, Slot::bits64, {}});
    t.add({"texture.query"}, {run_query, Slot::bits32, {Slot::bits64}, Slot::none, Flow::checked});
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
