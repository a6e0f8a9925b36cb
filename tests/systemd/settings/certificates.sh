# An authority, a node's key for systemd alone, a broker's key for the broker.
set -e
umask 077
mkdir -p /etc/yamamori/tls && cd /etc/yamamori/tls
new="openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 9"
signed="-CA ca.pem -CAkey ca.key"
$new -subj /CN=ca -keyout ca.key -out ca.pem
$new $signed -subj /CN=n1 -keyout key.pem -out cert.pem
$new $signed -subj /CN=gw -addext subjectAltName=IP:127.0.0.1 -keyout gw.key -out gw.pem
install -o mosquitto -m 400 ca.pem gw.pem gw.key /etc/mosquitto/certs
rm gw.*
