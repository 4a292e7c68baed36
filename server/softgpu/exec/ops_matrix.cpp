// A warp's matrix instructions. Products of 16-bit and tf32 elements are summed in f32, each step rounded once. This is
// at least as exact as the hardware, whose order of summation PTX leaves open. Integers wrap or saturate; f64 sums are
// fused.
#include <algorithm>
#include <limits>

#include "server/softgpu/exec/float_ops.h"
#include "server/softgpu/exec/half.h"
#include "server/softgpu/exec/matrix.h"
#include "server/softgpu/exec/resolve.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

constexpr u32 kMaxElements = 16 * 256;

const MatrixForm& form_of(const Warp& w, const Inst& i) {
    return w.current.frame->function->matrices[i.target];
}

float from_f8(u8 bits, u32 exponent_bits) {
    const u32 fraction_bits = 7 - exponent_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const u32 exponent = bits >> fraction_bits & ((1U << exponent_bits) - 1);
    const u32 fraction = bits & ((1U << fraction_bits) - 1);
    const bool top = exponent == (1U << exponent_bits) - 1;
    const float sign = (bits & 0x80) != 0 ? -1.0F : 1.0F;
    if (exponent_bits == 5 && top) {
        return fraction == 0 ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    }
    if (exponent_bits == 4 && (bits & 0x7F) == 0x7F) {
        return std::numeric_limits<float>::quiet_NaN();
    }
    const auto scaled = static_cast<float>(exponent == 0 ? fraction : fraction | 1U << fraction_bits);
    return sign *
           std::ldexp(scaled, std::max<int>(static_cast<int>(exponent), 1) - bias - static_cast<int>(fraction_bits));
}

s32 sub_byte(const u8* words, u32 index, u32 bits, bool sign) {
    const u32 value = words[index * bits / 8] >> (index * bits % 8) & ((1U << bits) - 1);
    return sign && (value >> (bits - 1)) != 0 ? static_cast<s32>(value) - (1 << bits) : static_cast<s32>(value);
}

// Converts the elements in `words` to numbers.
template <class T>
void decode(const u8* words, Element element, u32 count, T* to) {
    const auto* halves = reinterpret_cast<const u16*>(words);
    const auto* whole = reinterpret_cast<const u32*>(words);
    switch (element) {
        case Element::f16:
            for (u32 n = 0; n < count; ++n) {
                to[n] = static_cast<T>(half_to_float(halves[n]));
            }
            break;
        case Element::bf16:
            for (u32 n = 0; n < count; ++n) {
                to[n] = static_cast<T>(std::bit_cast<float>(u32{halves[n]} << 16));
            }
            break;
        case Element::tf32:  // the low bits are ignored
            for (u32 n = 0; n < count; ++n) {
                to[n] = static_cast<T>(std::bit_cast<float>(whole[n] & 0xFFFFE000U));
            }
            break;
        case Element::f32:
            for (u32 n = 0; n < count; ++n) {
                to[n] = static_cast<T>(std::bit_cast<float>(whole[n]));
            }
            break;
        case Element::f64:
            for (u32 n = 0; n < count; ++n) {
                double value;
                std::memcpy(&value, words + std::size_t{n} * 8, 8);
                to[n] = static_cast<T>(value);
            }
            break;
        case Element::s8:
            for (u32 n = 0; n < count; ++n) {
                to[n] = static_cast<T>(static_cast<std::int8_t>(words[n]));
            }
            break;
        case Element::u8:
            for (u32 n = 0; n < count; ++n) {
                to[n] = static_cast<T>(words[n]);
            }
            break;
        case Element::s4:
        case Element::u4:
            for (u32 n = 0; n < count; ++n) {
                to[n] = static_cast<T>(sub_byte(words, n, 4, element == Element::s4));
            }
            break;
        case Element::b1:
            for (u32 n = 0; n < count; ++n) {
                to[n] = static_cast<T>(sub_byte(words, n, 1, false));
            }
            break;
        case Element::s32:
            for (u32 n = 0; n < count; ++n) {
                to[n] = static_cast<T>(static_cast<s32>(whole[n]));
            }
            break;
        case Element::e4m3:
        case Element::e5m2:
            for (u32 n = 0; n < count; ++n) {
                to[n] = static_cast<T>(from_f8(words[n], element == Element::e4m3 ? 4 : 5));
            }
            break;
        case Element::none: break;
    }
}

template <class T>
void encode_all(const T* from, Element element, u32 count, u8* words) {
    for (u32 n = 0; n < count; ++n) {
        if (element == Element::f16) {
            const u16 bits = to_half(static_cast<double>(from[n])).bits;
            std::memcpy(words + std::size_t{n} * 2, &bits, 2);
        } else if (element == Element::f64) {
            const auto value = static_cast<double>(from[n]);
            std::memcpy(words + std::size_t{n} * 8, &value, 8);
        } else if (element == Element::s32) {
            const auto value = static_cast<s32>(static_cast<s64>(from[n]));
            std::memcpy(words + std::size_t{n} * 4, &value, 4);
        } else {
            const float value = canonical(static_cast<float>(from[n]));
            std::memcpy(words + std::size_t{n} * 4, &value, 4);
        }
    }
}

u32 slot_element_bytes(Element element) {
    return element == Element::f64 ? 8 : 4;
}

// Reads a fragment's registers. Omits repeated elements of a wmma fragment.
template <class T>
void read_fragment(const Warp& w, const std::vector<u32>& slots, Element element, const std::vector<u16>& places,
                   u32 count, T* matrix) {
    alignas(64) u8 words[kMaxElements * 8];
    const u32 bytes = slot_element_bytes(element) * kLaneCount;
    const u32 needed = (count * element_bits(element) / 8 + bytes - 1) / bytes;
    for (u32 r = 0; r < needed; ++r) {
        std::memcpy(words + std::size_t{r} * bytes, w.reg<u8>(slots[r]), bytes);
    }
    if (places.empty()) {
        return decode(words, element, count, matrix);
    }
    T values[kMaxElements];
    decode(words, element, count, values);
    for (u32 n = 0; n < count; ++n) {
        matrix[places[n]] = values[n];
    }
}

template <class T>
void write_fragment(const Warp& w, const MatrixForm& form, const T* matrix) {
    const u32 count = form.m * form.n;
    alignas(64) u8 words[kMaxElements * 8];
    if (form.d_places.empty()) {
        encode_all(matrix, form.d, count, words);
    } else {
        T values[kMaxElements];
        for (u32 n = 0; n < count; ++n) {
            values[n] = matrix[form.d_places[n]];
        }
        encode_all(values, form.d, count, words);
    }
    const u32 bytes = slot_element_bytes(form.d) * kLaneCount;
    for (u32 r = 0; r < form.d_slots.size(); ++r) {
        const u32 from = r * bytes % (count * element_bits(form.d) / 8);
        std::memcpy(w.reg<u8>(form.d_slots[r]), words + from, bytes);
    }
}

template <class T>
T multiply_add(T a, T b, T c) {
    if constexpr (std::is_same_v<T, s64>) {
        return c + a * b;
    } else {
        return fused(a, b, c);
    }
}

template <class T, u32 N>
void multiply_rows(const T* a, const T* b, T* c, u32 m, u32 k) {
    for (u32 row = 0; row < m; ++row) {
        T sum[N];
        for (u32 n = 0; n < N; ++n) {
            sum[n] = c[row * N + n];
        }
        for (u32 step = 0; step < k; ++step) {
            const T factor = a[row * k + step];
            for (u32 n = 0; n < N; ++n) {
                sum[n] = multiply_add(factor, b[step * N + n], sum[n]);
            }
        }
        for (u32 n = 0; n < N; ++n) {
            c[row * N + n] = sum[n];
        }
    }
}

template <class T>
void run_multiply(Warp& w, const Inst& i) {
    const MatrixForm& form = form_of(w, i);
    T a[kMaxElements], b[kMaxElements], c[kMaxElements];
    read_fragment(w, form.a_slots, form.a, form.a_places, form.m * form.k, a);
    read_fragment(w, form.b_slots, form.b, form.b_places, form.k * form.n, b);
    read_fragment(w, form.c_slots, form.c, form.c_places, form.m * form.n, c);
    if (form.exclusive_or) {
        // x ^ y = x(1-y) + (1-x)y = x + y - 2xy: with -2x for x, only both sums need to be added.
        for (u32 row = 0; row < form.m; ++row) {
            for (u32 column = 0; column < form.n; ++column) {
                for (u32 step = 0; step < form.k; ++step) {
                    c[row * form.n + column] += a[row * form.k + step] + b[step * form.n + column];
                }
            }
        }
        for (u32 n = 0; n < form.m * form.k; ++n) {
            a[n] *= -2;
        }
    }
    switch (form.n) {
        case 8: multiply_rows<T, 8>(a, b, c, form.m, form.k); break;
        case 16: multiply_rows<T, 16>(a, b, c, form.m, form.k); break;
        default: multiply_rows<T, 32>(a, b, c, form.m, form.k); break;
    }
    if (form.saturate && std::is_same_v<T, s64>) {
        for (u32 n = 0; n < form.m * form.n; ++n) {
            c[n] = std::clamp<T>(c[n], static_cast<T>(std::numeric_limits<s32>::min()),
                                 static_cast<T>(std::numeric_limits<s32>::max()));
        }
    }
    write_fragment(w, form, c);
}

// All lanes have the same address. The span from the first to the last element must lie in one range.
bool find_matrix(Warp& w, const Inst& i, const MatrixForm& form, u64& pointer, u64& stride, Access access) {
    const auto lane = static_cast<u32>(std::countr_zero(w.exec));
    const u64 lines = form.by_column ? form.columns : form.rows, across = form.by_column ? form.rows : form.columns;
    stride = form.stride == kNoSlot ? across : w.reg<u32>(form.stride)[lane];
    const u64 span = ((lines - 1) * stride + across) * element_bits(form.d);
    const auto bytes = static_cast<u64>((span + 7) / 8);
    const u64 address = lane_address(w, i, lane);
    const auto space = static_cast<MemorySpace>(i.mode & kMemorySpaceMask);
    if (bytes > 0xFFFFFFFF) {
        w.raise(FaultKind::illegal_address, i, address, "a matrix of more than 4 GiB");
        return false;
    }
    const auto size = static_cast<u32>(bytes);
    return resolve_span(w, i, space, address, size, pointer, access);
}

// Element `index` of memory with elements of less than a byte.
u32 bits_at(u64 pointer, u64 index, u32 bits) {
    const u8* at = reinterpret_cast<const u8*>(pointer + index * bits / 8);
    return *at >> (index * bits % 8) & ((1U << bits) - 1);
}

void run_load(Warp& w, const Inst& i) {
    const MatrixForm& form = form_of(w, i);
    u64 pointer = 0, stride = 0;
    if (!find_matrix(w, i, form, pointer, stride, Access::read)) {
        return;
    }
    const u32 bits = element_bits(form.d), bytes = bits / 8;
    alignas(64) u8 words[kMaxElements * 8] = {};
    for (u32 row = 0; row < form.rows; ++row) {
        if (!form.by_column && bits >= 8) {
            std::memcpy(words + std::size_t{row} * form.columns * bytes,
                        reinterpret_cast<const u8*>(pointer + row * stride * bytes), std::size_t{form.columns} * bytes);
            continue;
        }
        for (u32 column = 0; column < form.columns; ++column) {
            const u64 at = form.by_column ? column * stride + row : row * stride + column;
            const u32 place = row * form.columns + column;
            if (bits >= 8) {
                std::memcpy(words + std::size_t{place} * bytes, reinterpret_cast<const u8*>(pointer + at * bytes),
                            bytes);
            } else {
                words[place * bits / 8] |= static_cast<u8>(bits_at(pointer, at, bits) << place * bits % 8);
            }
        }
    }
    const u32 width = slot_element_bytes(form.d) * kLaneCount;
    const u32 total = form.rows * form.columns * bits / 8;
    for (u32 r = 0; r < form.d_slots.size(); ++r) {
        std::memcpy(w.reg<u8>(form.d_slots[r]), words + std::size_t{r} * width % total, width);
    }
}

void run_store(Warp& w, const Inst& i) {
    const MatrixForm& form = form_of(w, i);
    u64 pointer = 0, stride = 0;
    if (!find_matrix(w, i, form, pointer, stride, Access::write)) {
        return;
    }
    const u32 bytes = element_bits(form.d) / 8, width = slot_element_bytes(form.d) * kLaneCount;
    alignas(64) u8 words[kMaxElements * 8];
    for (u32 r = 0; r < form.d_slots.size(); ++r) {
        std::memcpy(words + std::size_t{r} * width, w.reg<u8>(form.d_slots[r]), width);
    }
    for (u32 row = 0; row < form.rows; ++row) {
        for (u32 column = 0; column < form.columns; ++column) {
            const u64 at = form.by_column ? column * stride + row : row * stride + column;
            std::memcpy(reinterpret_cast<u8*>(pointer + at * bytes),
                        words + std::size_t{row * form.columns + column} * bytes, bytes);
        }
    }
}

// ldmatrix and stmatrix: lane 8x+y contains the address of row y of matrix x.
bool find_rows(Warp& w, const Inst& i, const MatrixForm& form, LanePointers& rows) {
    const u32 exec = w.exec;
    w.exec &= static_cast<u32>((u64{1} << 8 * form.d_slots.size()) - 1);
    const bool found =
        resolve(w, i, 16, rows, Access::write);  // shared memory, where read and write access are the same
    w.exec = exec;
    return found;
}

// Positions of a lane's two halves in an 8 by 8 matrix.
struct HalfPlace {
    u32 row, column;
};
HalfPlace half_place(u32 lane, u32 half, bool transposed) {
    const HalfPlace place{lane / 4, lane % 4 * 2 + half};
    return transposed ? HalfPlace{place.column, place.row} : place;
}

template <bool Store>
void run_rows(Warp& w, const Inst& i) {
    const MatrixForm& form = form_of(w, i);
    LanePointers rows = {};
    if (!find_rows(w, i, form, rows)) {
        return;
    }
    for (u32 matrix = 0; matrix < form.d_slots.size(); ++matrix) {
        u16* halves = w.reg<u16>(form.d_slots[matrix]);
        u16 values[2 * kLaneCount];
        for (u32 n = 0; n < 2 * kLaneCount; ++n) {
            const HalfPlace place = half_place(n / 2, n % 2, form.transposed);
            auto* at = reinterpret_cast<u16*>(rows[matrix * 8 + place.row]) + place.column;
            if (Store) {
                *at = halves[n];
            } else {
                values[n] = *at;
            }
        }
        if (!Store) {
            std::memcpy(halves, values, sizeof values);
        }
    }
}

void run_transpose(Warp& w, const Inst& i) {
    const MatrixForm& form = form_of(w, i);
    u16 values[2 * kLaneCount];
    std::memcpy(values, w.reg<u16>(form.a_slots[0]), sizeof values);
    u16* d = w.reg<u16>(form.d_slots[0]);
    for (u32 n = 0; n < 2 * kLaneCount; ++n) {
        const HalfPlace place = half_place(n / 2, n % 2, true);
        d[n] = values[place.row * 8 + place.column];
    }
}

}  // namespace

void register_matrix(OpTable& t) {
    const auto add = [&](std::string_view name, OpFn fn) {
        t.add({name}, {fn, Slot::none, {}, Slot::none, Flow::warp_sync});
    };
    add("matrix.multiply.f32", run_multiply<float>);
    add("matrix.multiply.f64", run_multiply<double>);
    add("matrix.multiply.s32", run_multiply<s64>);
    add("matrix.load", run_load);
    add("matrix.store", run_store);
    add("matrix.load8", run_rows<false>);
    add("matrix.store8", run_rows<true>);
    add("matrix.transpose8", run_transpose);
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
