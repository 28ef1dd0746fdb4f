// What stands out in a row of logits: the largest of them, the logarithm of their summed exponentials, and whether all
// are finite. One pass over memory, in chunks that stay in the first cache; sums are rescaled when a larger number
// turns up (Milakov and Gimelshein 2018, arXiv:1805.02867). A row's results depend on nothing but the row.

constexpr int64_t SURVEY_CHUNK = 256, SURVEY_STRIP = 16;

// The `count` largest so far, falling; of equal numbers, the earlier one first.
struct Largest {
    float* values;
    int64_t* ids;
    int64_t count, found;

    INLINE bool takes(float x) const { return found < count ? x == x : x > values[count - 1]; }

    INLINE void insert(float x, int64_t id) {
        int64_t place = found < count ? found++ : count - 1;
        for (; place > 0 && values[place - 1] < x; place--) {
            values[place] = values[place - 1];
            ids[place] = ids[place - 1];
        }
        values[place] = x;
        ids[place] = id;
    }
};

INLINE void look_through(const float* x, int64_t length, int64_t first_id, Largest& largest) {
    for (int64_t start = 0; start < length; start += SURVEY_STRIP) {
        const int64_t end = std::min(start + SURVEY_STRIP, length);
        if (largest.found == largest.count) {
            const float bar = largest.values[largest.count - 1];
            int32_t any = 0;
#pragma omp simd reduction(| : any)
            for (int64_t i = start; i < end; i++) any |= x[i] > bar;
            if (!any) continue;
        }
        for (int64_t i = start; i < end; i++) {
            if (largest.takes(x[i])) largest.insert(x[i], first_id + i);
        }
    }
}

INLINE void survey_row(const float* x, int64_t width, Largest& largest, float* log_sum, uint8_t* finite) {
    float top = -INFINITY;
    double total = 0.0;
    Words broken = {};
    for (int64_t start = 0; start < width; start += SURVEY_CHUNK) {
        const float* chunk = x + start;
        const int64_t length = std::min(SURVEY_CHUNK, width - start);
        const int64_t whole = length / WIDTH * WIDTH;
        Floats highests = spread(-INFINITY);
        for (int64_t i = 0; i < whole; i += WIDTH) {
            const Floats numbers = load(chunk + i);
            highests = higher(numbers, highests);
            // Zero of a finite number, NaN of all others.
            broken |= reinterpret_cast<Words>(numbers - numbers);
        }
        float highest = highest_of(highests);
        for (int64_t i = whole; i < length; i++) {
            highest = chunk[i] > highest ? chunk[i] : highest;
            broken[0] |= __builtin_bit_cast(uint32_t, chunk[i] - chunk[i]);
        }
        if (largest.takes(highest)) look_through(chunk, length, start, largest);
        // Numbers that are all -inf add nothing, and less itself -inf is none.
        if (log_sum == nullptr || highest == -INFINITY) continue;
        if (highest > top) {
            total *= std::exp(static_cast<double>(top) - highest);
            top = highest;
        }
        Floats sums = {};
        for (int64_t i = 0; i < whole; i += WIDTH) sums += power_of_two((load(chunk + i) - top) * LOG2_E);
        float sum = sum_of(sums);
        for (int64_t i = whole; i < length; i++) sum += exp_negative(chunk[i] - top);
        total += sum;
    }
    // Where there are fewer numbers than are asked for: NaN is none.
    for (; largest.found < largest.count; largest.found++) {
        largest.values[largest.found] = -INFINITY;
        largest.ids[largest.found] = 0;
    }
    if (log_sum != nullptr) *log_sum = static_cast<float>(std::log(total));
    uint32_t any = 0;
    for (int64_t i = 0; i < WIDTH; i++) any |= broken[i];
    *finite = any == 0;
}

void survey(const Survey& task, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        Largest largest{task.values + row * task.count, task.ids + row * task.count, task.count, 0};
        survey_row(task.logits + row * task.stride, task.width, largest,
                   task.log_sums == nullptr ? nullptr : task.log_sums + row, task.finite + row);
    }
}
