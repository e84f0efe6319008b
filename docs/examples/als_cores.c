/* Sums the systems of alternating least squares, of order N: see als_cores.py.
 *
 * Four ratings at a time: what is loaded and stored of a sum serves four products. Of each matrix the lower triangle
 * is summed, in whole vectors. */
#include <stdint.h>
#include <string.h>

#define LANES (N % 16 ? N : 16)

void sum_systems(int64_t rows, const int64_t *begins, const int32_t *columns, const float *confidence,
                 const float *fixed, const float *gram, float *a, float *b)
{
    static const float nothing[N];
    for (int64_t row = 0; row < rows; row++) {
        float sum[N][N], right[N] = {0};
        memcpy(sum, gram, sizeof sum);
        const int64_t end = begins[row + 1];
        for (int64_t k = begins[row]; k < end; k += 4) {
            const float *y[4];
            float c[4], more[4];
            for (int which = 0; which < 4; which++) {
                const int there = k + which < end;
                y[which] = there ? fixed + (int64_t)columns[k + which] * N : nothing;
                c[which] = there ? confidence[k + which] : 0;
                more[which] = c[which] - 1;
            }
            for (int i = 0; i < N; i++) {
                const float s0 = more[0] * y[0][i], s1 = more[1] * y[1][i], s2 = more[2] * y[2][i], s3 = more[3] * y[3][i];
                for (int first = 0; first <= i; first += LANES)
                    for (int j = first; j < first + LANES; j++)
                        sum[i][j] += s0 * y[0][j] + s1 * y[1][j] + s2 * y[2][j] + s3 * y[3][j];
            }
            for (int j = 0; j < N; j++)
                right[j] += c[0] * y[0][j] + c[1] * y[1][j] + c[2] * y[2][j] + c[3] * y[3][j];
        }
        memcpy(a + row * N * N, sum, sizeof sum);
        memcpy(b + row * N, right, sizeof right);
    }
}
